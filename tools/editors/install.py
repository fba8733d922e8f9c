#!/usr/bin/env python3
"""Installs pinned programs of Debian 12 (amd64) into .tools/editors-VERSION, for tests: vim, ed, patch and scp.

    tools/editors/install.py

Fairlead itself needs none of them: they are ways in which people edit files that the server reads. On another system the
tests use those in $PATH.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(HERE))
import debian  # noqa: E402

debian.install(HERE, 'editors', {'vim': 'usr/bin/vim.tiny', 'ed': 'bin/ed', 'patch': 'usr/bin/patch', 'scp': 'usr/bin/scp'}, 'vim')
