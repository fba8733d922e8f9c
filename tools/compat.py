#!/usr/bin/env python3
"""Compares Fairlead with answers recorded from real Istio and a real Envoy.

    tools/compat.py --cases DIR --fairlead bin/fairlead --envoy ENVOY

DIR has validation/ (is this document accepted?), routes/ (where does this request go?), authz/ (is this request
allowed?) and gateways/ (where does a gateway send this request or connection?), each with a runner of its own under
tools/, which this script feeds, and reports/ (what would have helped the author of this bug report?), for which
reports.py beside this script has the commands and answers. Exit code 1 where an answer differs.
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile

import reports


def run(argv):
    print('$ ' + ' '.join(argv), flush=True)
    return subprocess.run(argv).returncode == 0


def render(fairlead, case, out, manifests, *more):
    d = json.load(open(os.path.join(case, 'case.json')))
    p = d['proxy']
    labels = ','.join('%s=%s' % kv for kv in p['labels'].items())
    argv = [fairlead, 'render', '-o', 'json', '--namespace', p['namespace'], '--labels', labels, '--ip', p['ip'],
            *more]
    for name in manifests:
        argv += ['--config-dir', os.path.join(case, name)]
    with tempfile.NamedTemporaryFile('w', suffix='.yaml') as f:
        if d.get('meshConfig'):
            json.dump(d['meshConfig'], f)
            f.flush()
            argv += ['--mesh-config', f.name]
        r = subprocess.run(argv, capture_output=True, text=True)
    if r.returncode != 0:
        print('%s: %s' % (os.path.basename(case), r.stderr.strip()))
    with open(out, 'w') as f:
        f.write(inline(r.stdout))


def inline(dump):
    """Puts the configurations of filters that travel by themselves (ECDS) into the listeners, where the
    runners read filters."""
    if not dump:
        return dump
    d = json.loads(dump)
    extensions = {x['ecds_filter']['name']: x['ecds_filter'].get('typed_config')
                  for c in d.get('configs', []) for x in c.get('ecds_filters', [])}

    def walk(v):
        for x in v.values() if isinstance(v, dict) else v if isinstance(v, list) else ():
            walk(x)
        if isinstance(v, dict) and 'config_discovery' in v:
            del v['config_discovery']
            v['typed_config'] = extensions[v['name']]
    walk(d)
    return json.dumps(d)


def validation(a):
    return run([sys.executable, os.path.join(a.cases, 'validation/tools/score.py'), '--cases', os.path.join(a.cases, 'validation/cases.jsonl'),
                '--cmd', os.path.abspath(a.fairlead) + ' validate {file}'])


def routes(a):
    with tempfile.TemporaryDirectory() as tmp:
        for case in sorted(glob.glob(os.path.join(a.cases, 'routes/cases/*'))):
            render(a.fairlead, case, os.path.join(tmp, os.path.basename(case) + '.json'), ['mesh.yaml'])
        return run([sys.executable, os.path.join(a.cases, 'routes/tools/run.py'), '--all', '-q', '--rc-dir', tmp, '--envoy', os.path.abspath(a.envoy)])


def authz(a):
    with tempfile.TemporaryDirectory() as tmp:
        for case in sorted(glob.glob(os.path.join(a.cases, 'authz/cases/*'))):
            # With capture there are inbound listeners without a Sidecar.
            render(a.fairlead, case, os.path.join(tmp, os.path.basename(case) + '.json'), ['workload.yaml', 'policy.yaml'], '--interception', 'REDIRECT')
        return run([sys.executable, os.path.join(a.cases, 'authz/tools/run.py'), '--all', '-q', '--filters-dir', tmp, '--envoy', os.path.abspath(a.envoy)])


def gateways(a):
    with tempfile.TemporaryDirectory() as tmp:
        tools = os.path.join(a.cases, 'gateways/tools')
        ok = run([sys.executable, os.path.join(tools, 'from_render.py'), '--run', os.path.abspath(a.fairlead), '--out-dir', tmp])
        return run([sys.executable, os.path.join(tools, 'run.py'), '--all', '-q', '--rc-dir', tmp, '--envoy', os.path.abspath(a.envoy)]) and ok


def bug_reports(a):
    return reports.run(os.path.join(a.cases, 'reports'), os.path.abspath(a.fairlead))


PARTS = {'validation': validation, 'routes': routes, 'authz': authz, 'gateways': gateways, 'reports': bug_reports}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for x in ('--cases', '--fairlead', '--envoy'):
        p.add_argument(x, required=True)
    p.add_argument('--only', default='', help='parts to run, such as validation,reports; empty means all')
    a = p.parse_args()
    names = a.only.split(',') if a.only else list(PARTS)
    unknown = [n for n in names if n not in PARTS]
    if unknown:
        p.error('there is no part %s; choose from %s' % (', '.join(unknown), ', '.join(PARTS)))
    failed = [n for n in names if os.path.isdir(os.path.join(a.cases, n)) and not PARTS[n](a)]
    missing = [n for n in names if not os.path.isdir(os.path.join(a.cases, n))]
    if missing:
        print('not there: ' + ', '.join(missing))
    if not a.only and 'reports' in missing:
        missing.remove('reports')  # a larger collection of cases may come without them
    if failed:
        print('answers differ in: ' + ', '.join(failed))
    sys.exit(1 if failed or missing else 0)


main()
