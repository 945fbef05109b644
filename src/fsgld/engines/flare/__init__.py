"""The real federation: chains travel between sites on NVIDIA FLARE (the extra `flare`).

    study.py      a study is a folder: study.toml and model.py (in `fsgld.study`)
    messages.py   every message: its schema and its bytes; nothing else leaves a site
    site.py       what a site does with a message; limits, audit log
    visit.py      Algorithm 1 at a site, with one client
    post.py       the coordinator's post office: retries, checks, ledger, answers that are known
    sites.py      `Sites`, a table of rows that are elsewhere
    server.py     `Travel`, the engine that moves chains
    arguments.py  a study's settings as arguments of `fsgld.sample`
    agreeing.py   what sites settle before the first round (a formula's columns), and answer after the last
    leg.py        `fsgld.sample` with both of them, from the last checkpoint as far as it goes
    disk.py       small files, written whole or not at all
    collab.py     the few lines that FLARE calls
    kits.py       provisioning: certificates, start-up kits, the job
    processes.py  FLARE's programs as child processes: started, watched, stopped
    journey.py    `fsgld run`: leg after leg until there is a result
    commands.py   the command line

None of it adds mathematics: `Sites` passes questions of `fsgld.sample` on (see `fsgld.rows.asked`), and a site
runs the compiled engine with itself as the only client. Random numbers are made at the site from (seed, chain, round).

FLARE jobs are legs. A FLARE job ends when one of its processes dies, and a site that comes back does not rejoin
it. So the coordinator's disk holds the truth: answers given before the first round, and every finished round. Any
death ends in the next leg, which goes on from there. A message that is sent again is answered with the same bytes.

The job that is submitted contains no code, only the names of two classes of the installed `fsgld`; sites are
provisioned to refuse jobs that carry code, shell commands and the shipping of logs. All connections are mutual TLS.
"""
