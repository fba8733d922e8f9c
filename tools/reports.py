"""Runs what public bug reports ask: is Fairlead right where others were asked for help?

A report is a folder with a mesh.yaml and an expect.md for people. REPORTS says the same for a program: which commands
are run, and what they print. A report is right if every check holds. Those in KNOWN are not right yet: they are
printed, and fail nothing; one that has become right fails, so that the list stays true. So does a folder that is not in
the table, and an entry without a folder.
"""
import os
import re
import shutil
import subprocess
import tempfile


def check(*argv, exit=None, has=(), lacks=()):
    """One command: {mesh} is the file of the report, {dir} a folder with it. The output, stdout and stderr together,
    matches each expression of has, and none of lacks."""
    return {'argv': argv, 'exit': exit, 'has': has, 'lacks': lacks}


def either(*checks):
    """One of several checks has to hold."""
    return {'either': checks}


def render(*argv, **what):
    return check('render', '--config-dir', '{dir}', '--ip', '10.99.9.9', '-o', 'json', *argv, exit=0, **what)


def analyze(**what):
    return check('analyze', '{dir}', **what)


CAPTURE = ('--namespace', 'shop', '--interception', 'REDIRECT')

# The workload, service and issuer that the policy of 05 is for, and the claims of the token.
TOKENS = {'workload.yaml': '''apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: srv, namespace: lab}
spec: {address: 10.1.1.1, labels: {app: srv}, serviceAccount: srv}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: srv, namespace: lab}
spec: {hosts: [srv.lab.test], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], workloadSelector: {labels: {app: srv}}}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: srv, namespace: lab}
spec:
  selector: {matchLabels: {app: srv}}
  jwtRules: [{issuer: "https://tok.test", jwksUri: "https://tok.test/keys"}]
''', 'claims.json': '{"iss": "https://tok.test", "sub": "repo:org/some-repo:ref:refs/heads/main"}'}


def token(path):
    return check('authz', 'check', '--config-dir', '{dir}', '--workload', 'lab/srv', '--interception', 'REDIRECT', '--port', '80',
                 '--claims', '{dir}/claims.json', 'GET', path, exit=0)


# Each report: its checks, and perhaps files that stand beside mesh.yaml.
REPORTS = {
    '01-null-property': ([check('validate', '{mesh}', exit=0, has=[r'2 objects: 0 errors, 0 warnings'])], {}),
    '03-split-destination-rules': ([
        analyze(exit=0, lacks=[r'FL0211']),
        check('render', '--config-dir', '{dir}', '--namespace', 'shop', '--ip', '10.9.9.9', '-o', 'json', exit=0, has=[r'"lb_policy":\s*"RANDOM"']),
    ], {}),
    '05-subject-with-slash': ([
        either(token('/exact'), analyze(has=[r'warning .*AuthorizationPolicy lab/srv .*requestPrincipals'])),
        either(token('/prefix'), analyze(has=[r'warning .*AuthorizationPolicy lab/srv .*requestPrincipals'])),
    ], TOKENS),
    '07-partly-shared-vip': ([
        render(*CAPTURE, has=[r'"name":\s*"10\.9\.0\.1_5000"', r'"name":\s*"10\.9\.0\.2_5000"']),
        analyze(has=[r'warning .*10\.9\.0\.1\b']),
    ], {}),
    '09-two-protocols-one-port': ([analyze(has=[r'warning .*8080', r'x\.shop\.test', r'x-raw\.shop\.test'])], {}),
    '11-name-in-static': ([analyze(has=[r'(warning|error) .*vm9\.corp\.test', r'fq\.shop\.test'])], {}),
    '13-http10': ([analyze(exit=0, lacks=[r'FL0130']), render(*CAPTURE, has=[r'"accept_http_10":\s*true'])], {}),
    '14-gateway-host-judged-as-sidecar': ([analyze(exit=0, lacks=[r'FL0242'])], {}),
    '15-wildcard-route-lost': ([either(render(*CAPTURE, has=[r'"\*\.wildvs\.test"']), analyze(has=[r'(warning|error) .*VirtualService shop/wild .*\*\.wildvs\.test']))], {}),
    '16-port-hash-without-port': ([either(render(*CAPTURE, has=[r'"header_name":\s*"x-user"']), analyze(has=[r'warning .*(VirtualService|DestinationRule) shop/h .*give the destination a port']))], {}),
    '18-policy-port-of-no-workload': ([analyze(has=[r'warning .*AuthorizationPolicy shop/no-admin .*\b80\b'])], {}),
    '20-rules-of-another-protocol': ([analyze(has=[r'warning .*VirtualService shop/h spec\.http', r'warning .*VirtualService shop/t spec\.tcp'])], {}),
}

# Reports that are not right yet, with what is missing.
KNOWN = {
    '03-split-destination-rules': 'FL0211 warns of a policy that is in force',
    '07-partly-shared-vip': 'a service whose first address is not taken has no listener at its others',
    '09-two-protocols-one-port': 'nothing names two protocols for one port of a workload',
    '11-name-in-static': 'nothing names an address that STATIC cannot use',
    '13-http10': 'HTTP/1.0 cannot be accepted',
    '14-gateway-host-judged-as-sidecar': 'FL0242 asks for a Sidecar of a host that is a gateway',
    '15-wildcard-route-lost': 'nothing names the host that the route lost',
    '16-port-hash-without-port': 'the route has no hash policy, and nothing warns of it',
    '18-policy-port-of-no-workload': 'nothing names a port of a policy that no workload serves',
    '20-rules-of-another-protocol': 'nothing names rules of another protocol',
}


def wrong(one, fairlead, folder):
    """What is wrong with a check, or None."""
    if 'either' in one:
        each = [wrong(c, fairlead, folder) for c in one['either']]
        return None if None in each else '; and '.join(each)
    argv = [x.replace('{mesh}', os.path.join(folder, 'mesh.yaml')).replace('{dir}', folder) for x in one['argv']]
    r = subprocess.run([fairlead, *argv], capture_output=True, text=True)
    # The name of a temporary folder is no answer, and may match anything.
    out, name = (r.stdout + r.stderr).replace(folder, '{dir}'), 'fairlead ' + ' '.join(one['argv'])
    if one['exit'] is not None and r.returncode != one['exit']:
        return '`%s` exits with %d, not %d: %s' % (name, r.returncode, one['exit'], out.strip()[-300:])
    for x in one['has']:
        if not re.search(x, out):
            return '`%s` prints nothing that matches %s' % (name, x)
    for x in one['lacks']:
        found = re.search('.*' + x + '.*', out)
        if found:
            return '`%s` prints %s' % (name, found.group(0))
    return None


def judge(name, fairlead, folder, table):
    """What is wrong with a report: a list."""
    checks, files = table[name]
    with tempfile.TemporaryDirectory() as tmp:
        shutil.copy(os.path.join(folder, 'mesh.yaml'), tmp)
        for path, text in files.items():
            with open(os.path.join(tmp, path), 'w') as f:
                f.write(text)
        return [w for w in (wrong(c, fairlead, tmp) for c in checks) if w is not None]


def run(folders, fairlead, table=None, known=None):
    """Judges all reports and prints the result; True if it is as the lists say."""
    table, known = REPORTS if table is None else table, KNOWN if known is None else known
    there = sorted(n for n in os.listdir(folders) if os.path.isdir(os.path.join(folders, n)))
    bad, right, late = [], 0, 0
    for name in there:
        if name not in table:
            bad.append('%s: no entry in REPORTS of tools/reports.py says what is right' % name)
            continue
        faults = judge(name, fairlead, os.path.join(folders, name), table)
        if not faults and name in known:
            bad.append('%s: it is right now; take it out of KNOWN in tools/reports.py' % name)
        elif faults and name in known:
            late += 1
            print('known  %s: %s\n       %s' % (name, known[name], '\n       '.join(faults)))
        elif faults:
            bad.append('%s: %s' % (name, '; '.join(faults)))
        else:
            right += 1
            print('right  %s' % name)
    bad += ['%s: there is no such report' % n for n in sorted({*table, *known}) if n not in there]
    for b in bad:
        print('WRONG  %s' % b)
    print('reports: %d right, %d known, %d wrong' % (right, late, len(bad)), flush=True)
    return not bad
