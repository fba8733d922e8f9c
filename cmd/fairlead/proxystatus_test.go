package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
)

// TestStatusSaysWhatIsNotWell: whatever makes the exit code 1 is in the output, for
// every type in every state.
func TestStatusSaysWhatIsNotWell(t *testing.T) {
	t.Parallel()
	states := map[string]func(*server.Type){
		"synced": func(*server.Type) {}, "pending": func(x *server.Type) { x.Pending = true },
		"rejected": func(x *server.Type) { x.Rejected = []server.Rejection{{Name: "n", Reason: "because"}} },
	}
	says := regexp.MustCompile(`STALE|PARTIAL|REJECTED|\norders\.shop is (stale|not synced|unhealthy)`)
	for _, name := range append(server.TypeNames(), "") {
		for state, set := range states {
			for _, partial := range []bool{false, true} {
				x := server.Proxy{Name: "orders.shop", Connected: true, Health: "healthy", Partial: partial}
				for _, other := range server.TypeNames() {
					if other == name && state == "synced" {
						continue // it has not asked for this one
					}
					typ := server.Type{Type: other}
					if other == name {
						set(&typ)
					}
					x.Types = append(x.Types, typ)
				}
				var out strings.Builder
				bad, err := writeProxies(&out, server.Proxies{Proxies: []server.Proxy{x}})
				if err != nil {
					t.Fatal(err)
				}
				if !bad || !says.MatchString(out.String()) {
					t.Errorf("%q is %s, partial %t: bad is %t, and nothing says what is wrong:\n%s", name, state, partial, bad, out.String())
				}
				x.Synced = true
				out.Reset()
				if bad, err = writeProxies(&out, server.Proxies{Proxies: []server.Proxy{x}}); err != nil || bad || strings.Contains(out.String(), "not synced") {
					t.Errorf("all is synced, and the status is %t, %v:\n%s", bad, err, out.String())
				}
			}
		}
	}
}
