package peeraddr

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestGroup(t *testing.T) {
	t.Parallel()
	for address, want := range map[string][2]string{
		"10.1.2.3:4":                   {"10.1.2.3", "10.1.2.3"},
		"10.1.2.3":                     {"10.1.2.3", "10.1.2.3"},
		"[::ffff:10.1.2.3]:4":          {"10.1.2.3", "10.1.2.3"},
		"::ffff:10.1.2.3":              {"10.1.2.3", "10.1.2.3"},
		"[2001:db8:1:2:3:4:5:6]:7":     {"2001:db8:1:2::/64", "2001:db8:1:2:3:4:5:6"},
		"[2001:db8:1:2:ffff::1]:65535": {"2001:db8:1:2::/64", "2001:db8:1:2:ffff::1"},
		"2001:db8:1:2:ffff::1":         {"2001:db8:1:2::/64", "2001:db8:1:2:ffff::1"},
		"[fe80::1%eth0]:7":             {"fe80::/64", "fe80::1"},
		"[::1]:7":                      {"::1", "::1"},
		"name:7":                       {"name", "name"},
		"@":                            {"@", "@"},
		"":                             {"", ""},
	} {
		if got := [2]string{Group(address), Host(address)}; got != want {
			t.Errorf("%q is counted as %q, want %q", address, got, want)
		}
	}
}

// dissected are the files that take addresses apart, and why nobody is counted by
// what is left of them.
var dissected = map[string]string{
	"agent/assemble.go":                          "where the agent's own listener is",
	"agent/dns/probe.go":                         "this server's own listeners",
	"agent/capture/facts.go":                     "ports of sshd in files",
	"agent/proxy/admin.go":                       "the address of Envoy's admin interface",
	"agent/metrics/handler.go":                   "the address of the application, which is dialed",
	"cmd/fairlead/agent.go":                      "a setting",
	"cmd/fairlead/agentmetrics.go":               "the agent's own listener",
	"cmd/fairlead/agentcheck.go":                 "settings",
	"cmd/fairlead/internal/server/config.go":     "settings, and the server's own listeners",
	"cmd/fairlead/internal/server/glue.go":       "whether a host comes from the address that it claims",
	"cmd/fairlead/internal/server/hosts.go":      "the server's own names",
	"cmd/fairlead/internal/server/keysets.go":    "the ports of the server's own listeners",
	"pki/jwks/fetch.go":                          "the address of an issuer, which is dialed",
	"pki/svid/jointoken.go":                      "the servers in a token",
	"registry/manifest/webhook/proxydefaults.go": "a field of an object",
	"registry/mesh/proxyconfig.go":               "a field of an object",
	"registry/manifest/webhook/sidecar.go":       "a field of an object",
	"xds/view/inbound.go":                        "a field of an object",
}

// TestNobodyElseSplitsAddresses: what counts peers by their address asks this package,
// or somebody with a /64 of IPv6 is as many peers as he likes. Files that take
// addresses apart for another reason say which.
func TestNobodyElseSplitsAddresses(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	seen := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains([]string{"bench", "examples", "tools", "internal"}, rel) || rel != "." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && splits(s) {
				seen[rel] = true
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path := range seen {
		if dissected[path] == "" {
			t.Errorf("%s takes an address apart: if it counts peers by that, use peeraddr.Group, else say here what it is for", path)
		}
	}
	for path := range dissected {
		if !seen[path] {
			t.Errorf("%s takes no address apart any more: take it out of the list", path)
		}
	}
}

// splits reports whether a selector is a function or a field that takes the port
// off an address.
func splits(s *ast.SelectorExpr) bool {
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return false
	}
	switch x.Name + "." + s.Sel.Name {
	case "net.SplitHostPort", "netip.ParseAddrPort", "net.TCPAddr", "net.ResolveTCPAddr":
		return true
	}
	return false
}
