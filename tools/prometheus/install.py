#!/usr/bin/env python3
"""Builds the pinned Prometheus and promtool into .tools/prometheus-VERSION/.

    tools/prometheus/install.py

The version and the hashes of all they are made of stand in go.mod and go.sum beside this file, a module of its own. It
needs the Go module proxy and nothing else: five minutes on two cores the first time, seconds with Go's cache. Programs
that are there already are left alone, without using the network. The Prometheus has no web interface.
"""
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(os.path.dirname(os.path.dirname(HERE)), '.tools')
MODULE = 'github.com/prometheus/prometheus'


def version():
    with open(os.path.join(HERE, 'go.mod')) as f:
        return re.search(r'^\s*(?:require )?' + re.escape(MODULE) + r' v(\S+)', f.read(), re.M).group(1)


def install(v, name):
    target = os.path.join(TOOLS, 'prometheus-' + v, name)
    if os.path.exists(target):
        return
    print('building %s %s, which takes minutes once' % (name, v), flush=True)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as tmp:
        part = os.path.join(tmp, name)
        built = subprocess.run([os.environ.get('GO', 'go'), 'build', '-C', HERE, '-trimpath', '-ldflags', '-s -w', '-o', part, MODULE + '/cmd/' + name],
                               env=dict(os.environ, CGO_ENABLED='0', GOWORK='off', GOFLAGS=''))
        if built.returncode != 0:
            sys.exit('building %s %s: go build failed (see above); one of your own works too: put it at %s' % (name, v, target))
        with open(part, 'rb') as f:
            os.fsync(f.fileno())
        os.rename(part, target)
    print('installed %s %s' % (name, v))


for program in ['promtool', 'prometheus']:
    install(version(), program)
