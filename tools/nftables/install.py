#!/usr/bin/env python3
"""Installs the pinned nft of Debian 12 (amd64) into .tools/nftables-VERSION/nft, for tests.

    tools/nftables/install.py

Fairlead itself needs no nft: the tests have it list and load tables, as people and firewalls do. On another system the tests
use the nft in $PATH.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(HERE))
import debian  # noqa: E402

debian.install(HERE, 'nftables', {'nft': 'usr/sbin/nft'}, 'nftables')
