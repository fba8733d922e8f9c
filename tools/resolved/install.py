#!/usr/bin/env python3
"""Installs the pinned systemd-resolved of Debian 12 (amd64) into .tools/resolved-VERSION/systemd-resolved, for tests.

    tools/resolved/install.py

Fairlead itself needs no systemd-resolved: a test has it send names of the mesh to an agent, as docs/dns.md says. On another
system the tests use the one that is installed.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(HERE))
import debian  # noqa: E402

debian.install(HERE, 'resolved', {'systemd-resolved': 'lib/systemd/systemd-resolved'}, 'systemd-resolved', 'usr/lib/x86_64-linux-gnu/systemd')
