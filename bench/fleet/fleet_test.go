package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/scenario"
	"github.com/fairlead/fairlead/internal/consultest"
)

// TestMain lets the test be the process of a fleet, as the program is.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == scenario.FleetCommand {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestCell runs a whole cell, so small that it costs nothing: the program must
// work on the day somebody wants to know something.
func TestCell(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the program")
	}
	binary := filepath.Join(t.TempDir(), "fairlead")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-o", binary, "./cmd/fairlead").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, envoy := range map[string]string{"new": "40", "old": "36"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var out bytes.Buffer
			err := run(t.Context(), []string{
				"cell", "-fairlead", binary, "-dir", dir, "-services", "10", "-endpoints", "3", "-proxies", "8",
				"-gateways", "3", "-gateway-proxies", "2", "-gateway-routes", "2", "-routes", "2", "-replacements", "2", "-idle", "1ms", "-envoy", envoy,
			}, &out)
			if err != nil {
				log, _ := os.ReadFile(filepath.Join(dir, "server.log"))
				t.Fatalf("%v\n%s", err, log)
			}
			var r scenario.Result
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			if r.Totals.Ready != 8 || r.Totals.Faults != 0 || r.Cold.CPU <= 0 || r.Idle.RSS <= 0 || r.Cold.Kinds["CDS"].Messages < 8 {
				t.Errorf("%+v", r)
			}
			if len(r.Gateways) != 2 || r.Gateways[1].Bytes == 0 || r.Sidecars != 0 {
				t.Errorf("edits of gateways: %+v, %d bytes to others", r.Gateways, r.Sidecars)
			}
			if len(r.Routes) != 2 || len(r.Endpoints) != 2 {
				t.Fatalf("%d routes, %d endpoints", len(r.Routes), len(r.Endpoints))
			}
			for _, c := range append(r.Routes, r.Endpoints...) {
				if c.Messages != 8 || c.Last <= 0 || c.Decision <= 0 || c.Repeated != 0 {
					t.Errorf("%+v", c)
				}
			}
		})
	}
}

// TestConsul runs the cell of a Consul catalog, so small that it costs little.
func TestConsul(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the program")
	}
	consul := consultest.Binary(t)
	binary := filepath.Join(t.TempDir(), "fairlead")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-o", binary, "./cmd/fairlead").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := t.TempDir()
	var out bytes.Buffer
	err := run(t.Context(), []string{
		"consul", "-fairlead", binary, "-consul", consul, "-dir", dir, "-services", "40", "-instances", "3", "-nodes", "5", "-proxies", "2",
		"-flips", "2", "-added", "1", "-flap", "2s", "-idle", "1ms", "-starts", "2",
	}, &out)
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "server.log"))
		t.Fatalf("%v\n%s", err, log)
	}
	var r scenario.CatalogResult
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Ways) != 2 || r.Ways[0].Secure || !r.Ways[1].Secure || r.Fill <= 0 {
		t.Fatalf("%+v", r)
	}
	for _, w := range r.Ways {
		if len(w.Starts) != 2 || len(w.Out) != 2 || len(w.In) != 2 || len(w.AddedIn) != 1 || len(w.AddedOut) != 1 || w.Throttled != 0 {
			t.Errorf("%+v", w)
		}
		for _, s := range w.Starts {
			if s.Seconds <= 0 || s.CPU <= 0 || s.Counted && s.Counts.Reads < 40 || s.Peaks.Reads > 16 || s.Peaks.Connections > 64 {
				t.Errorf("secure: %t: a start: %+v", w.Secure, s)
			}
		}
		if w.Flapped != 2 || w.FlapCounts.Reads+w.FlapCounts.Wakes == 0 || w.Idle.RSS <= 0 {
			t.Errorf("secure: %t: %+v", w.Secure, w)
		}
	}
	s := &suite{began: time.Now()}
	for _, w := range r.Ways {
		s.keepWay(w)
	}
	for _, tab := range consulTables()[1:] {
		if text := tab.Markdown(&s.samples, nil); strings.Contains(text, "not measured") || strings.Contains(text, "–\n") {
			t.Errorf("not all of it is measured:\n%s", text)
		}
	}
}
