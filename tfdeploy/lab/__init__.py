"""The lab: machines on this machine, each with systemd, sshd and an address of its own.

layout.py     what a lab is made of, as values; pure
machine.py    this machine: commands, sudo, the Docker engine
image.py      the file system that lab hosts start from
identity.py   a lab's directory: keys, known_hosts, what must outlive a command
verbs.py      up, status, down, and the faults: kill, start, cut, heal, slow
"""
