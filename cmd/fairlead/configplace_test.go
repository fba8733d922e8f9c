package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
)

// place is a directory and a prefix of a Consul.
type place struct {
	t           *testing.T
	a           *consultest.Agent
	dir, prefix string
	token       string
}

func newPlace(t *testing.T, a *consultest.Agent, prefix string) *place {
	t.Helper()
	return &place{t: t, a: a, dir: t.TempDir(), prefix: prefix}
}

// other is another directory of the same prefix.
func (p *place) other() *place {
	o := *p
	o.dir = p.t.TempDir()
	return &o
}

func (p *place) file(rel, content string) {
	p.t.Helper()
	path := filepath.Join(p.dir, rel)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) remove(rel string) {
	p.t.Helper()
	if err := os.Remove(filepath.Join(p.dir, rel)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) put(rel, content string) {
	p.t.Helper()
	op := &api.KVTxnOp{Verb: api.KVSet, Key: p.prefix + "/" + rel, Value: []byte(content)}
	if done, _, _, err := p.a.Client().Txn().Txn(api.TxnOps{{KV: op}}, nil); err != nil || !done {
		p.t.Fatal(done, err)
	}
}

// keys are the keys below the prefix and their values.
func (p *place) keys() map[string]string {
	p.t.Helper()
	list, _, err := p.a.Client().KV().List(p.prefix+"/", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	out := map[string]string{}
	for _, kv := range list {
		// A push ends each text with this line.
		out[strings.TrimPrefix(kv.Key, p.prefix+"/")] = strings.TrimSuffix(string(kv.Value), "...\n")
	}
	return out
}

// files are the files below the directory, but hidden ones.
func (p *place) files() map[string]string {
	p.t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(p.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return err
		}
		content, err := os.ReadFile(path)
		rel, _ := filepath.Rel(p.dir, path)
		out[rel] = string(content)
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// run runs a subcommand and wants its exit code, and words in what it says.
func (p *place) run(code int, args []string, words ...string) string {
	p.t.Helper()
	args = append([]string{"config", args[0], p.dir, "--consul-address", p.a.Address(), "--consul-kv-prefix", p.prefix}, args[1:]...)
	if p.a.Cluster().CAFile != "" {
		args = append(args, "--consul-ca-file", p.a.Cluster().CAFile)
	}
	if p.token != "" {
		path := filepath.Join(p.t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(p.token), 0o600); err != nil {
			p.t.Fatal(err)
		}
		args = append(args, "--consul-token-file", path)
	}
	got, out, errs := cli(p.t, args...)
	if got != code {
		p.t.Errorf("%v: exit code %d, want %d", args, got, code)
	}
	for _, w := range words {
		if !strings.Contains(out+errs, w) {
			p.t.Errorf("%v does not say %q", args, w)
		}
	}
	if p.t.Failed() {
		p.t.Logf("%v: %d\n%s%s", args, got, out, errs)
		p.t.FailNow()
	}
	return out
}

func serviceEntry(name, host string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s}\n"+
		"spec:\n  hosts: [%s.example]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  ports: [{number: 80, name: http, protocol: HTTP}]\n"+
		"  endpoints: [{address: 10.0.0.1}]\n", name, host)
}

func routeTo(name, host string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: %s}\n"+
		"spec:\n  hosts: [%s.example]\n  http: [{route: [{destination: {host: %s.example}}]}]\n", name, host, host)
}
