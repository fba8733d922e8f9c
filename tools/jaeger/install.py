#!/usr/bin/env python3
"""Builds the pinned Jaeger into .tools/jaeger-VERSION/jaeger.

    tools/jaeger/install.py

The version and the hashes of all it is made of stand in go.mod and go.sum beside this file, a module of its own. It
needs the Go module proxy and nothing else: three minutes the first time, seconds with Go's cache. A Jaeger that is there
already is left alone, without using the network. It has no web interface. Only `make test-jaeger` needs it.
"""
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(os.path.dirname(os.path.dirname(HERE)), '.tools')
MODULE = 'github.com/jaegertracing/jaeger'


def install():
    with open(os.path.join(HERE, 'go.mod')) as f:
        v = re.search(r'^\s*(?:require )?' + re.escape(MODULE) + r' v(\S+)', f.read(), re.M).group(1)
    target = os.path.join(TOOLS, 'jaeger-' + v, 'jaeger')
    if os.path.exists(target):
        return
    print('building Jaeger %s, which takes minutes once' % v, flush=True)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as tmp:
        part = os.path.join(tmp, 'jaeger')
        built = subprocess.run([os.environ.get('GO', 'go'), 'build', '-C', HERE, '-trimpath', '-ldflags', '-s -w', '-o', part, MODULE + '/cmd/all-in-one'],
                               env=dict(os.environ, CGO_ENABLED='0', GOWORK='off', GOFLAGS=''))
        if built.returncode != 0:
            sys.exit('building Jaeger %s: go build failed (see above)' % v)
        with open(part, 'rb') as f:
            os.fsync(f.fileno())
        os.rename(part, target)
    print('installed Jaeger %s' % v)


install()
