#!/usr/bin/env python3
"""Installs the pinned dnsmasq of Debian 12 (amd64) into .tools/dnsmasq-VERSION/dnsmasq, for tests.

    tools/dnsmasq/install.py

Fairlead itself needs no dnsmasq: tests have it send names of the mesh to an agent, as docs/dns.md says. On another system the
tests use the dnsmasq in $PATH.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(HERE))
import debian  # noqa: E402

debian.install(HERE, 'dnsmasq', {'dnsmasq': 'usr/sbin/dnsmasq'}, 'dnsmasq-base')
