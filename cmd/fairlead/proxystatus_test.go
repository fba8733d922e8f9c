package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

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
	says := regexp.MustCompile(`UNWELL \(1\)\n  (not-synced|rejected): .*orders\.shop.*\n +\S+`)
	show := func(x server.Proxy) (bool, string) {
		p := server.Proxies{Proxies: []server.Proxy{x}}
		st := status{Proxies: p, Unwell: server.Conditions(&p, &server.Sources{}, time.Now())}
		if err := st.choose(nil, false); err != nil {
			t.Error(err)
		}
		var out strings.Builder
		if err := st.write(&out); err != nil {
			t.Error(err)
		}
		return !st.Well, out.String()
	}
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
				x.Behind = time.Now().Add(-time.Hour)
				bad, out := show(x)
				if !bad || !says.MatchString(out) {
					t.Errorf("%q is %s, partial %t: bad is %t, and nothing says what is wrong:\n%s", name, state, partial, bad, out)
				}
				if state == "rejected" && name != "" {
					continue
				}
				x.Behind = time.Now().Add(-time.Second)
				if bad, out = show(x); bad {
					t.Errorf("%q is %s for a second, which needs nobody:\n%s", name, state, out)
				}
				x.Synced = true
				if bad, out = show(x); bad || strings.Contains(out, "not synced") {
					t.Errorf("all is synced, and the status is %t:\n%s", bad, out)
				}
			}
		}
	}
}
