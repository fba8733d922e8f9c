#!/usr/bin/env python3
"""Installs the pinned nft and iptables (iptables-nft) of Debian 12 (amd64) into .tools/nftables-VERSION/, for tests.

    tools/nftables/install.py

Fairlead itself needs neither: the tests have them list and load tables, as people, firewalls and Docker do. On another system
the tests use those in $PATH.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(HERE))
import debian  # noqa: E402

debian.install(HERE, 'nftables', {'nft': 'usr/sbin/nft', 'iptables': 'usr/sbin/iptables-nft'}, 'nftables and iptables')
