#!/usr/bin/env python3
"""Installs the pinned dnsmasq of Debian 12 (amd64) into .tools/dnsmasq-VERSION/dnsmasq, for tests.

    tools/dnsmasq/install.py

Fairlead itself needs no dnsmasq: a test has it send names of the mesh to an agent, as docs/dns.md says. The packages and their
hashes stand in packages.txt beside this file. They are unpacked, not installed: nothing of the system changes. A dnsmasq
that is there already is left alone, without using the network. On another system the tests use the dnsmasq in $PATH.
"""
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(os.path.dirname(os.path.dirname(HERE)), '.tools')


def packages():
    with open(os.path.join(HERE, 'packages.txt')) as f:
        return [line.split() for line in f if line.strip()]


def install():
    version = packages()[0][0].split('=')[1].split('-')[0]
    target = os.path.join(TOOLS, 'dnsmasq-' + version)
    if os.path.exists(os.path.join(target, 'dnsmasq')):
        return
    os.makedirs(TOOLS, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as tmp:
        if shutil.which('apt-get') is None or not download(tmp):
            if shutil.which('dnsmasq') is not None:
                print('dnsmasq %s of Debian 12 is not available here: the tests use %s' % (version, shutil.which('dnsmasq')))
                return
            sys.exit('installing dnsmasq %s: apt-get could not download it (see above): install the package dnsmasq-base of your system' % version)
        root = os.path.join(tmp, 'root')
        for deb in glob.glob(os.path.join(tmp, '*.deb')):
            subprocess.run(['dpkg-deb', '-x', deb, root], check=True)
        with open(os.path.join(root, 'dnsmasq'), 'w') as f:
            f.write('#!/bin/sh\nhere=$(dirname "$0")\nLD_LIBRARY_PATH=$here/usr/lib/x86_64-linux-gnu:$here/lib/x86_64-linux-gnu exec "$here/usr/sbin/dnsmasq" "$@"\n')
        os.chmod(os.path.join(root, 'dnsmasq'), 0o755)
        os.rename(root, target)
    print('installed dnsmasq %s' % version)


def download(tmp):
    names = [name for name, _ in packages()]
    if subprocess.run(['apt-get', 'download', '--quiet=2'] + names, cwd=tmp).returncode != 0:
        if subprocess.run(['apt-get', 'update', '--quiet=2']).returncode != 0:
            return False
        if subprocess.run(['apt-get', 'download', '--quiet=2'] + names, cwd=tmp).returncode != 0:
            return False
    wanted = {sha: name for name, sha in packages()}
    for deb in glob.glob(os.path.join(tmp, '*.deb')):
        with open(deb, 'rb') as f:
            if wanted.pop(hashlib.sha256(f.read()).hexdigest(), None) is None:
                sys.exit('installing dnsmasq: %s is not what packages.txt pins' % os.path.basename(deb))
    if wanted:
        sys.exit('installing dnsmasq: missing %s' % ', '.join(wanted.values()))
    return True


install()
