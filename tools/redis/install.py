#!/usr/bin/env python3
"""Installs the pinned Redis of Debian 12 (amd64) into .tools/redis-VERSION/redis-server and redis-cli, for tests.

    tools/redis/install.py

Fairlead itself needs no Redis: it is an unmodified program, client and server, that tests send through the mesh. On another
system the tests use those in $PATH.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(HERE))
import debian  # noqa: E402

debian.install(HERE, 'redis', {'redis-server': 'usr/bin/redis-server', 'redis-cli': 'usr/bin/redis-cli'}, 'redis-server')
