"""Unpacks pinned packages of Debian 12 (amd64) into .tools/NAME-VERSION, for tests. The install.py of each tool says why.

packages.txt beside such an install.py has a package and its hash a line, the one that names the version first. Packages are
unpacked, not installed: nothing of the system changes. What is there already is left alone, without using the network.
"""
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

TOOLS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), '.tools')

# A program finds the libraries that were unpacked with it; iptables finds its extensions.
WRAPPER = '''#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
export XTABLES_LIBDIR="$here/usr/lib/x86_64-linux-gnu/xtables"
LD_LIBRARY_PATH=$here/usr/lib/x86_64-linux-gnu:$here/lib/x86_64-linux-gnu%s exec "$here/%s" "$@"
'''


def install(here, name, programs, package, further=''):
    """Makes .tools/NAME-VERSION/PROGRAM for each of programs, a dict of names and paths in the packages.

    package is what another system calls it. further are more directories of libraries, below $here."""
    with open(os.path.join(here, 'packages.txt')) as f:
        packages = [line.split() for line in f if line.strip()]
    version = packages[0][0].split('=')[1].split(':')[-1].split('-')[0]
    target = os.path.join(TOOLS, '%s-%s' % (name, version))
    if all(os.path.exists(os.path.join(target, p)) for p in programs):
        return
    os.makedirs(TOOLS, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as tmp:
        if shutil.which('apt-get') is None or not download(tmp, name, packages):
            if all(shutil.which(p) or os.path.exists("/" + path) for p, path in programs.items()):
                print('%s %s of Debian 12 is not available here: the tests use those of the system' % (name, version))
                return
            sys.exit('installing %s %s: apt-get could not download it (see above): install the package %s of your system' % (name, version, package))
        root = os.path.join(tmp, 'root')
        for deb in glob.glob(os.path.join(tmp, '*.deb')):
            subprocess.run(['dpkg-deb', '-x', deb, root], check=True)
        os.chmod(root, 0o755)
        for p, path in programs.items():
            with open(os.path.join(root, p), 'w') as f:
                f.write(WRAPPER % (further and ':$here/' + further, path))
            os.chmod(os.path.join(root, p), 0o755)
        if os.path.exists(target):  # without a program that an earlier version of the list did not have
            os.rename(target, os.path.join(tmp, 'old'))
        os.rename(root, target)
    print('installed %s %s' % (name, version))


def download(tmp, name, packages):
    names = [n for n, _ in packages]
    if subprocess.run(['apt-get', 'download', '--quiet=2'] + names, cwd=tmp).returncode != 0:
        if subprocess.run(['apt-get', 'update', '--quiet=2']).returncode != 0:
            return False
        if subprocess.run(['apt-get', 'download', '--quiet=2'] + names, cwd=tmp).returncode != 0:
            return False
    wanted = {sha: n for n, sha in packages}
    for deb in glob.glob(os.path.join(tmp, '*.deb')):
        with open(deb, 'rb') as f:
            if wanted.pop(hashlib.sha256(f.read()).hexdigest(), None) is None:
                sys.exit('installing %s: %s is not what packages.txt pins' % (name, os.path.basename(deb)))
    if wanted:
        sys.exit('installing %s: missing %s' % (name, ', '.join(wanted.values())))
    return True
