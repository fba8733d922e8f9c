package admin

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestRemadeSocketsAreCounted: who removes sockets can be found by an alert.
func TestRemadeSocketsAreCounted(t *testing.T) {
	t.Parallel()
	r := prometheus.NewPedanticRegistry()
	s, _ := start(t, Config{Registerer: r, Sockets: func() map[string]uint64 { return map[string]uint64{"xds.sock": 7} }})
	read := func() string {
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, f := range families {
			for _, m := range f.GetMetric() {
				out = append(out, fmt.Sprint(f.GetName(), " ", m.GetLabel()[0].GetValue(), " ", m.GetCounter().GetValue()))
			}
		}
		return strings.Join(out, ", ")
	}
	want := "fairlead_remade_sockets_total admin.sock %d, fairlead_remade_sockets_total xds.sock 7"
	for n := range 2 {
		envoytest.Eventually(t, envoytest.Patience, func() error {
			if got := read(); got != fmt.Sprintf(want, n) {
				return fmt.Errorf("after %d removals: %s", n, got)
			}
			return nil
		})
		if err := os.Remove(s.cfg.Socket); err != nil {
			t.Fatal(err)
		}
	}
}
