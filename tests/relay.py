"""Ears on a federation: a relay between a site and the coordinator, and a sniffer for all that passes on loopback."""

import contextlib
import selectors
import socket
import threading
import time


class Sniffer:
    """Records all packets on the loopback interface; others than the super-user get a PermissionError."""

    def __init__(self, file):
        self.ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.file, self.stopped = file.open("wb"), False
        self.ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**23)
        self.ear.bind(("lo", 0))
        self.ear.settimeout(0.5)
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self):
        while not self.stopped:
            with contextlib.suppress(TimeoutError):
                data, (_, _, way, *_) = self.ear.recvfrom(2**17)
                if way != socket.PACKET_OUTGOING:  # every packet on loopback comes by twice
                    self.file.write(data)

    def stop(self):
        self.stopped = True
        self.thread.join(5)
        self.ear.close()
        self.file.close()


class Relay:
    """A slow line that records all bytes and can be cut: it passes bytes on to `port`, both ways; one object a site."""

    def __init__(self, port, file):
        self.port, self.file, self.cut, self.stopped, self.delay = port, file.open("ab"), False, False, 0.0
        self.first, self.lock = [], threading.Lock()  # the first bytes of every connection, from the site's side
        self.door = socket.create_server(("localhost", 0))
        self.address = f"localhost:{self.door.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while not self.stopped:
            try:
                site, _ = self.door.accept()
            except OSError:
                return
            threading.Thread(target=self._pass, args=(site,), daemon=True).start()

    def _pass(self, site):
        """Carry bytes until a side hangs up; while the line is cut nothing is carried, and nobody is told."""
        try:
            centre = socket.create_connection(("localhost", self.port), 5)
        except OSError:
            return site.close()
        with site, centre, selectors.DefaultSelector() as ready:
            ready.register(site, selectors.EVENT_READ, centre)
            ready.register(centre, selectors.EVENT_READ, site)
            begun = False
            while not self.stopped:
                for key, _ in ready.select(0.1) if not self.cut else ():
                    try:
                        data = key.fileobj.recv(2**16)
                        if not data:
                            return
                        with self.lock:
                            if not begun and key.fileobj is site:
                                self.first.append(data[:3])
                                begun = True
                            self.file.write(data)
                        time.sleep(self.delay)
                        key.data.sendall(data)
                    except OSError:
                        return
                if self.cut:
                    time.sleep(0.1)

    def stop(self):
        self.stopped = True
        self.door.close()
        with self.lock:
            self.file.flush()
