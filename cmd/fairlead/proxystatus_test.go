package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
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

// TestStatusOfSome: with names and with --unwell there are fewer rows, and the exit code is about
// what is named; text and JSON agree.
func TestStatusOfSome(t *testing.T) {
	t.Parallel()
	row := func(name, health string) server.Proxy {
		return server.Proxy{Name: name + ".shop", Host: name, ID: "sidecar~" + name, Connected: true, Synced: true, Health: health}
	}
	away := server.Proxy{Name: "dead.shop", Host: "dead", Absent: true, Since: time.Now(), Health: "silent"}
	planned := row("planned", "unhealthy")
	planned.Withdrawn, planned.HealthReason = true, "in maintenance mode"
	run := adminOf(t, map[string]http.Handler{
		"GET /v1/proxies": admin.JSON(func(context.Context, *http.Request, struct{}) (server.Proxies, error) {
			return server.Proxies{
				Proxies: []server.Proxy{row("web", "healthy"), row("sick", "unhealthy"), planned, away},
				Absent:  []server.AbsentHost{{Name: "dead", Never: true, Since: time.Now()}},
				Refused: []server.Refused{{Host: "liar", What: "stream", Reason: "no", Last: time.Now(), Count: 1}},
			}, nil
		}),
		"GET /v1/sources": admin.JSON(func(context.Context, *http.Request, struct{}) (server.Sources, error) {
			return server.Sources{Clock: []string{"signing is on hold"}}, nil
		}),
	})
	for args, c := range map[string]struct {
		code    int
		rows    []string
		reasons string
	}{
		"":                     {1, []string{"web", "sick", "planned", "dead"}, "clock host-absent unhealthy refused"},
		"--unwell":             {1, []string{"sick", "dead"}, "clock host-absent unhealthy refused"},
		"web":                  {0, []string{"web"}, ""},
		"web.shop planned":     {0, []string{"web", "planned"}, ""},
		"sidecar~sick":         {1, []string{"sick"}, "unhealthy"},
		"dead":                 {1, []string{"dead"}, "host-absent"},
		"dead.shop web":        {1, []string{"web", "dead"}, "host-absent"},
		"web sick --unwell":    {1, []string{"sick"}, "unhealthy"},
		"web planned --unwell": {0, nil, ""},
		"liar":                 {1, nil, "refused"},
		"wep":                  {2, nil, ""},
		"web nobody":           {2, nil, ""},
	} {
		cmd := append([]string{"proxy-status", "--run-dir", run}, strings.Fields(args)...)
		code, text, errs := cli(t, cmd...)
		jsonCode, out, _ := cli(t, append(cmd, "-o", "json")...)
		if code != c.code || jsonCode != c.code {
			t.Errorf("%q: exit codes %d and %d, want %d:\n%s%s", args, code, jsonCode, c.code, text, errs)
		}
		if code == exitFailed {
			if !strings.Contains(errs, "there is no proxy or host") || args == "wep" && !strings.Contains(errs, `did you mean "web"`) {
				t.Errorf("%q: %s", args, errs)
			}
			continue
		}
		var got struct {
			Well   bool
			Unwell []server.Condition
			server.Proxies
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil || got.Well != (code == 0) {
			t.Errorf("%q: %v: %s", args, err, out)
		}
		var rows, reasons []string
		for _, x := range got.Proxies.Proxies {
			rows = append(rows, x.Host)
		}
		for _, x := range got.Unwell {
			reasons = append(reasons, x.Reason)
			if !strings.Contains(text, "  "+x.Reason+": "+x.Text+"\n      "+x.Action+"\n") {
				t.Errorf("%q: the text does not have %+v:\n%s", args, x, text)
			}
		}
		if !slices.Equal(rows, c.rows) || strings.Join(reasons, " ") != c.reasons || strings.Contains(text, "UNWELL") != (code != 0) {
			t.Errorf("%q: rows %q, want %q; reasons %q, want %q:\n%s", args, rows, c.rows, reasons, c.reasons, text)
		}
		for _, name := range []string{"web", "sick", "planned", "dead"} {
			if is := strings.Contains(text, "\n"+name+".shop "); is != slices.Contains(c.rows, name) {
				t.Errorf("%q: a row of %s: %v\n%s", args, name, is, text)
			}
		}
	}
}

// TestManyConditionsAreShort: a thousand absent hosts are ten lines and a number.
func TestManyConditionsAreShort(t *testing.T) {
	t.Parallel()
	p := server.Proxies{}
	for i := range 1000 {
		p.Absent = append(p.Absent, server.AbsentHost{Name: fmt.Sprintf("h%04d", i)})
	}
	p.Refused = []server.Refused{{Host: "liar", Last: time.Now()}}
	var out strings.Builder
	if err := writeUnwell(&out, server.Conditions(&p, &server.Sources{}, time.Now())); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.HasPrefix(s, "\nUNWELL (1001)\n") || strings.Count(s, "host-absent: host h") != 1 || !strings.Contains(s, "the same for h0001, ") || !strings.Contains(s, "… and 979 more") || !strings.Contains(s, "refused: host liar") {
		t.Error(s)
	}
}
