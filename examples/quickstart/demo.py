#!/usr/bin/env python3
"""A mesh of four hosts on this machine: a control plane, and for each host an agent,
its Envoy and a small service. Ctrl-C ends all of it. No root, nothing beyond loopback.

    make demo                          (builds and installs what this needs, then runs it)
"""
import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))

# name, identity, address, port of the application, its arguments, probe
HOSTS = [
    ('inventory', 'shop/inventory', '127.0.0.14', 18083, ['--protocol', 'grpc'], '--probe-tcp'),
    ('orders-v1', 'shop/orders', '127.0.0.12', 18081,
     ['--next', 'grpc://127.0.0.12:9090', '--next-host', 'inventory.shop.internal'], '--probe-http'),
    ('orders-v2', 'shop/orders', '127.0.0.13', 18082,
     ['--next', 'grpc://127.0.0.13:9090', '--next-host', 'inventory.shop.internal'], '--probe-http'),
    ('web', 'shop/web', '127.0.0.11', 18080,
     ['--next', 'http://127.0.0.11:9080', '--next-host', 'orders.shop.internal'], '--probe-http'),
]


class Demo:
    mortal = ('server',)  # what may be killed: that is one of the things to try

    def __init__(self, args):
        self.args = args
        self.state = os.path.abspath(args.state)
        self.run = tempfile.mkdtemp(prefix='fairlead-')  # short: a unix socket's path has 107 characters
        self.processes, self.scripts = [], []

    def start(self, name, argv, text=None):
        log = open(os.path.join(self.state, name + '.log'), 'ab')
        # A session of its own: Ctrl-C comes to this script alone, which ends the rest in order.
        p = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
                             text=True, start_new_session=True)
        log.close()
        with open(self.pid_file(name), 'w') as f:
            f.write('%d\n' % p.pid)
        if text is not None:
            with p.stdin as f:
                f.write(text)
        self.processes.append((name, p))
        return p

    def check(self):
        for name, p in self.processes:
            if p.poll() is not None:
                with open(os.path.join(self.state, name + '.log'), errors='replace') as f:
                    tail = f.read().splitlines()[-5:]
                sys.exit('%s ended with %s:\n  %s' % (name, p.returncode, '\n  '.join(tail)))

    def ask(self, *argv):
        return subprocess.run([self.args.fairlead] + list(argv), capture_output=True, text=True)

    def wait(self, what, seconds, ready):
        end = time.monotonic() + seconds
        while not ready():
            self.check()
            if time.monotonic() > end:
                sys.exit('%s: not after %d s; the logs are in %s' % (what, seconds, self.state))
            time.sleep(0.05)

    def server_argv(self):
        return [self.args.fairlead, 'server', '--config-dir', self.args.mesh, '--state-dir', os.path.join(self.state, 'server'),
                '--run-dir', self.server_run(), '--xds-address', '127.0.0.1:15012', '--http-address', '127.0.0.1:15014',
                '--jwks-dir', os.path.join(HERE, '..', 'authorization', 'keys'),
                '--mesh-config', os.path.join(HERE, '..', 'authorization', 'mesh-config.yaml')]

    def server_run(self):
        return os.path.join(self.run, 'server')

    def up(self):
        shutil.rmtree(self.state, ignore_errors=True)
        os.makedirs(self.state)
        os.symlink(self.run, os.path.join(self.state, 'run'))  # a path that the README can name
        self.start('server', self.server_argv())
        self.wait('the control plane', 30, lambda: self.ask('host', 'list', '--run-dir', self.server_run()).returncode == 0)
        for name, identity, address, port, app, probe in HOSTS:
            self.start(name + '-app', [self.args.app, '--name', name, '--listen', '127.0.0.1:%d' % port] + app)
            token = self.ask('token', 'create', '--host', name, '--workload', identity, '--run-dir', self.server_run())
            if token.returncode != 0:
                sys.exit('making a token for %s: %s' % (name, token.stderr.strip()))
            # By a file: the arguments of a process can be read by every user of a machine.
            path = os.path.join(self.state, name + '.token')
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), 'w') as f:
                f.write(token.stdout)
            self.start(name, [self.args.fairlead, 'agent', '--token-file', path, '--address', address, '--envoy', self.args.envoy,
                              '--state-dir', os.path.join(self.state, name), '--run-dir', os.path.join(self.run, name),
                              probe, str(port) if probe == '--probe-tcp' else '%d/healthz' % port, '--probe-period', '1s'])
        self.wait('the mesh', 60, self.ready)

    def ready(self):
        out = self.ask('proxy-status', '-o', 'json', '--run-dir', self.server_run())
        if out.returncode not in (0, 1):  # 1: something is not as it should be, yet
            return False
        proxies = [p for p in json.loads(out.stdout)['proxies'] if p.get('envoy') == 'live' and not p.get('partial')]
        return len(proxies) >= len(HOSTS) and self.all_answer('http://127.0.0.11:8080/', {'orders-v1', 'orders-v2'})

    def all_answer(self, url, names):
        """Whether 50 requests in a row are answered, and each of the instances takes part. A proxy is live a moment
        before the others have heard of it, and until then they avoid it."""
        waiting = set(names)
        for _ in range(50):
            answer = self.get(url)
            if answer is None:
                return False
            waiting.discard((answer.get('next') or {}).get('name'))
        return not waiting

    def get(self, url):
        """What a URL answers, decoded; None if it does not."""
        try:
            with urllib.request.urlopen(url, timeout=2) as r:
                return json.load(r)
        except (OSError, ValueError):
            return None

    def script(self, name, argv):
        """A script that starts a process again, and the command that runs it. Ctrl-C here ends that process, too."""
        path = os.path.join(self.state, 'start-%s.sh' % name)
        with open(path, 'w') as f:
            f.write('echo $$ > %s\nexec %s\n' % (shlex.quote(self.pid_file(name)), shlex.join(argv)))
        self.scripts.append((name, argv))
        return 'sh ' + os.path.relpath(path)

    def pid_file(self, name):
        return os.path.join(self.state, name + '.pid')

    def by_hand(self):
        """The processes that somebody started with the scripts."""
        for name, argv in self.scripts:
            try:
                with open(self.pid_file(name)) as f:
                    pid = int(f.read())
                with open('/proc/%d/cmdline' % pid) as f:
                    if f.read().split('\0')[:-1] == argv:  # else the number is another's by now
                        yield name, pid
            except (OSError, ValueError):
                pass

    def tell(self, took):
        rel = os.path.relpath
        print('''
A mesh of four hosts is up after %.1f s (a host is a loopback address here; no root).

  web        127.0.0.11:8080  ->  orders     127.0.0.12 (v1), 127.0.0.13 (v2), :9080, HTTP, 90/10
                                  inventory  127.0.0.14:9090, gRPC, called by orders
  control plane 127.0.0.1:15012, logs in %s

Try, in another terminal:
  curl http://127.0.0.11:8080/                          who answered, and which identity called it
  edit %s               the weights: the split follows within a second
  bin/fairlead proxy-status --run-dir %s
  kill -9 $(cat %s)                the control plane: nothing happens
  %s                      starts it again
Ctrl-C ends everything.
''' % (took, rel(self.state), rel(os.path.join(self.args.mesh, 'orders.yaml')), rel(os.path.join(self.state, 'run', 'server')), rel(self.pid_file('server')),
            self.script('server', self.server_argv())), flush=True)

    def stay(self):
        while True:
            time.sleep(0.5)
            for name, p in list(self.processes):
                if p.poll() is not None and name not in self.mortal:
                    print('%s ended with %s; its log is %s.log' % (name, p.returncode, os.path.join(self.state, name)), flush=True)
                    self.processes.remove((name, p))
                    break

    def down(self):
        # Agents first: each drains and ends its Envoy.
        for name, p in reversed(self.processes):
            if p.poll() is None:
                p.terminate()
        for name, p in self.processes:
            try:
                p.wait(20)
            except subprocess.TimeoutExpired:
                print('%s does not end: killed' % name)
                p.kill()
                p.wait()
        for sign, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
            for name, pid in self.by_hand():
                os.kill(pid, sign)
            end = time.monotonic() + seconds
            while list(self.by_hand()) and time.monotonic() < end:
                time.sleep(0.05)
        shutil.rmtree(self.run, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.remove(os.path.join(self.state, 'run'))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--fairlead', default='bin/fairlead')
    p.add_argument('--app', default='bin/quickstart-app')
    p.add_argument('--envoy', required=True)
    p.add_argument('--mesh', default=os.path.join(HERE, 'mesh'))
    p.add_argument('--state', default='.demo')
    args = p.parse_args()
    args.fairlead, args.app, args.envoy = (os.path.abspath(x) for x in (args.fairlead, args.app, args.envoy))
    run(lambda: Demo(args), (args.fairlead, args.app, args.envoy), 'make demo')


def run(make, programs, command):
    """Runs a demo until Ctrl-C."""
    for path in programs:
        if not os.access(path, os.X_OK):
            sys.exit('%s is not there: `%s` builds and installs all that this needs' % (path, command))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell script ignores it for what it starts with &
    demo, begin = make(), time.monotonic()
    try:
        demo.up()
        demo.tell(time.monotonic() - begin)
        demo.stay()
    except KeyboardInterrupt:
        print('\nending the mesh')
    finally:
        demo.down()


if __name__ == '__main__':
    main()
