package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
)

// TestStatusShowsHashTables: proxies with tables of consistentHash are listed with their sums, the largest first, and
// the rule of the largest table; others are not.
func TestStatusShowsHashTables(t *testing.T) {
	t.Parallel()
	p := server.Proxies{Proxies: []server.Proxy{{Name: "plain.shop", Connected: true}}}
	for i := range 12 {
		p.Proxies = append(p.Proxies, server.Proxy{Name: fmt.Sprintf("p%d.shop", i), Connected: i != 11, HashTables: &server.HashTables{
			Clusters: 2, Entries: uint64(1000 * (i + 1)), Bytes: uint64(24_000 * (i + 1)),
			Largest: server.LargestTable{Cluster: "outbound|80||a.mesh", Entries: 900, DestinationRules: []string{"a.shop"}, Origins: []string{"a.yaml:3:1", "s.yaml:1:1"}},
		}})
	}
	st := status{Proxies: p}
	var out strings.Builder
	if err := st.write(&out); err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(out.String(), "HASH TABLES")
	lines := strings.Split(section, "\n")
	if got := strings.Join(strings.Fields(lines[1]), " "); got != "p10.shop 2 11000 0.3 MB 900 outbound|80||a.mesh a.shop (a.yaml:3:1)" {
		t.Errorf("the first row is %q", got)
	}
	if strings.Contains(section, "plain.shop") || strings.Contains(section, "p11.shop") || strings.Contains(section, "p0.shop") || !strings.Contains(section, "… and 1 more") {
		t.Errorf("the section is %s", section)
	}
	body, err := json.Marshal(p.Proxies[1])
	if err != nil || !strings.Contains(string(body), `"hash_tables":{"clusters":2,"entries":1000,"bytes":24000,"largest":{"cluster":"outbound|80||a.mesh","entries":900,"destination_rules":["a.shop"],"origins":["a.yaml:3:1","s.yaml:1:1"]}}`) {
		t.Errorf("JSON: %v %s", err, body)
	}
	st = status{Proxies: server.Proxies{Proxies: p.Proxies[:1]}}
	out.Reset()
	if err := st.write(&out); err != nil || strings.Contains(out.String(), "HASH") {
		t.Errorf("without tables: %v\n%s", err, out.String())
	}
}
