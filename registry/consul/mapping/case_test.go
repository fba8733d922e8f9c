package mapping

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"
	"golang.org/x/tools/txtar"

	"github.com/fairlead/fairlead/registry/mesh"
)

var update = flag.Bool("update", false, "write the results into the case files")

// page is the table that users read.
const page = "../../../docs/consul-mapping.md"

// TestCases maps what each file of testdata has. A file is a sentence, the
// settings (see readSettings), the registrations as Consul's API has them, laid
// over plain ones of a service "web", and what becomes of them.
func TestCases(t *testing.T) {
	t.Parallel()
	for _, name := range caseNames(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join("testdata", name+".txtar")
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if len(strings.TrimSpace(string(a.Comment))) == 0 {
				t.Errorf("%s does not say what it shows", path)
			}
			c, in := readSettings(t, section(a, "settings"))
			in.Entries = readEntries(t, section(a, "entries.json"))
			got := dump(newMapper(t, c).Map(in))
			if *update {
				setSection(a, "mesh.txt", got)
				if err := os.WriteFile(path, txtar.Format(a), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(section(a, "mesh.txt"), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
		})
	}
}

// TestTable holds the table on the page against the cases, row by row: each row
// names its case, what it says of Consul is in the case's input, and what it says
// of the mesh is in its result.
func TestTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^\| (.*) \| (.*) \| \[([a-z0-9-]+)\]\(\.\./registry/consul/mapping/testdata/([a-z0-9-]+)\.txtar\) \|$`)
	code := regexp.MustCompile("`([^`]+)`")
	onPage := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		name := m[3]
		if m[4] != name {
			t.Errorf("the row of %s links to %s", name, m[4])
		}
		if onPage[name] {
			t.Errorf("%s has two rows of %s", page, name)
		}
		onPage[name] = true
		a, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
		if err != nil {
			t.Error(err)
			continue
		}
		input, result := section(a, "settings")+section(a, "entries.json"), section(a, "mesh.txt")
		for _, says := range []struct{ words, file, what string }{{m[1], input, "input"}, {m[2], result, "result"}} {
			spans := code.FindAllStringSubmatch(says.words, -1)
			for _, span := range spans {
				if !strings.Contains(says.file, strings.ReplaceAll(span[1], `\|`, "|")) {
					t.Errorf("the row of %s says %q, which its %s has not:\n%s", name, span[1], says.what, says.file)
				}
			}
			if len(spans) == 0 {
				t.Errorf("the row of %s says nothing of its %s between backticks", name, says.what)
			}
		}
	}
	if rows := strings.Count(string(text), "testdata/"); rows != len(onPage) {
		t.Errorf("%d rows have the form of the table, %d links lead to cases", len(onPage), rows)
	}
	for _, name := range caseNames(t) {
		if !onPage[name] {
			t.Errorf("%s has no row of %s", page, name)
		}
	}
}

func caseNames(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) < 50 {
		t.Fatalf("found %d cases: %v", len(paths), err)
	}
	names := make([]string, 0, len(paths))
	for _, p := range paths {
		names = append(names, strings.TrimSuffix(filepath.Base(p), ".txtar"))
	}
	return names
}

func section(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func setSection(a *txtar.Archive, name, text string) {
	for i := range a.Files {
		if a.Files[i].Name == name {
			a.Files[i].Data = []byte(text)
			return
		}
	}
	a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(text)})
}

// readSettings reads lines of a word and a value.
func readSettings(t *testing.T, text string) (Config, *Input) {
	t.Helper()
	c := Config{}
	in := &Input{Source: "consul", Service: "web", Datacenter: "dc1", Local: true}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch key {
		case "host":
			c.Hosts = append(c.Hosts, value)
		case "namespace":
			c.Namespace = value
		case "service-account":
			c.ServiceAccount = value
		case "loopback":
			c.Loopback = value == "true"
		case "node-is-host":
			c.NodeIsHost = value == "true"
		case "address":
			c.Address = AddressKind(value)
		case "rule":
			r, err := ParseRule(value)
			if err != nil {
				t.Fatal(err)
			}
			c.Rules = append(c.Rules, r)
		case "service":
			in.Service = value
		case "consul-namespace":
			in.Namespace = value
		case "home-namespace":
			c.HomeNamespace = value
		case "partition":
			in.Partition = value
		case "connect-protocol":
			in.Protocol = value
		case "remote-datacenter":
			in.Local, in.Datacenter = false, value
		default:
			t.Fatalf("unknown setting %q", key)
		}
	}
	return c, in
}

// readEntries lays what a case says over plain registrations.
func readEntries(t *testing.T, text string) []*api.ServiceEntry {
	t.Helper()
	var list []json.RawMessage
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	out := make([]*api.ServiceEntry, 0, len(list))
	for i, raw := range list {
		e := &api.ServiceEntry{
			Node: &api.Node{Node: fmt.Sprintf("n%d", i+1), Address: fmt.Sprintf("10.0.0.%d", i+1), Datacenter: "dc1"},
			Service: &api.AgentService{
				ID: fmt.Sprintf("web-%d", i+1), Service: "web", Port: 8080, Weights: api.AgentWeights{Passing: 1, Warning: 1},
			},
		}
		if err := json.Unmarshal(raw, e); err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// dump shows a result as the cases have it.
func dump(r Result) string {
	var b strings.Builder
	for _, s := range r.Fragment.Services {
		fmt.Fprintf(&b, "service %s/%s\n  host %s\n", s.Namespace, s.Name, s.Hostname)
		for _, p := range s.Ports {
			fmt.Fprintf(&b, "  port %d name %s protocol %q\n", p.Number, p.Name, p.Protocol)
		}
		for _, a := range s.Addresses {
			fmt.Fprintf(&b, "  address %s\n", a)
		}
		fmt.Fprintf(&b, "  selects %s=%s\n", mesh.LabelConsulService, s.Selector[mesh.LabelConsulService])
		if s.Resolution == mesh.ResolutionDNS {
			b.WriteString("  resolution dns\n")
		}
		if s.External {
			b.WriteString("  external\n")
		}
	}
	for _, w := range r.Fragment.Workloads {
		fmt.Fprintf(&b, "instance %s/%s\n", w.Namespace, w.Name)
		for name, port := range w.Ports {
			fmt.Fprintf(&b, "  at %s port %d for %s\n", w.Address, port, name)
		}
		fmt.Fprintf(&b, "  identity %s/%s\n  locality %s/%s/%s\n", w.Namespace, w.ServiceAccount, w.Locality.Region, w.Locality.Zone, w.Locality.SubZone)
		if w.Health == mesh.Unhealthy {
			fmt.Fprintf(&b, "  unhealthy: %s\n", w.HealthReason)
		} else {
			fmt.Fprintf(&b, "  healthy, weight %d\n", w.Weight)
		}
		if w.Withdrawn {
			b.WriteString("  withdrawn\n")
		}
		if w.Owner() != "" {
			fmt.Fprintf(&b, "  owner %s\n", w.Owner())
		}
		for _, k := range slices.Sorted(maps.Keys(w.Labels)) {
			fmt.Fprintf(&b, "  label %s=%s\n", k, w.Labels[k])
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "%s %s %s: %s\n", n.Severity, n.Code, strings.TrimSpace(n.Service+" "+n.Instance), n.Message)
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}
