package attest_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/profile"
)

func domain() spiffeid.TrustDomain { return spiffeid.RequireTrustDomainFromString("mesh.test") }

func records(t *testing.T, dir string, readopt attest.Readopt) *attest.Entitlements {
	t.Helper()
	e, err := attest.New(attest.Config{Dir: dir, Logger: slog.New(slog.DiscardHandler), Readopt: readopt})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// joined is a host that has redeemed a token.
func joined(t *testing.T, e *attest.Entitlements, g jointoken.Grant, key byte, addresses ...attest.Address) attest.Host {
	t.Helper()
	secret, _, err := e.CreateToken(g, 0, time.Now(), addresses...)
	if err != nil {
		t.Fatal(err)
	}
	h, err := e.Redeem(secret, profile.KeyHash{key}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func grantOf(name string, accounts ...string) jointoken.Grant {
	g := jointoken.Grant{Host: name}
	for _, a := range accounts {
		g.Pairs = append(g.Pairs, profile.Pair{Namespace: "shop", ServiceAccount: a})
	}
	return g
}

func authority() profile.KeyHash { return profile.KeyHash{42} }

// carried is a document after its way through a file.
func carried(t *testing.T, d attest.Document) (out attest.Document) {
	t.Helper()
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestExportAndImport(t *testing.T) {
	t.Parallel()
	now := time.Now()
	from := records(t, t.TempDir(), attest.Readopt{})
	router := grantOf("edge", "edge")
	router.Type = "router"
	joined(t, from, grantOf("web-1", "web", "orders"), 1, addressesOf(t, "10.0.0.1", "net2/10.0.0.1")...)
	joined(t, from, router, 2)
	direct := grantOf("", "direct")
	direct.Direct = true
	joined(t, from, direct, 3)
	gone := joined(t, from, grantOf("gone", "web"), 4)
	if err := from.Remove("gone"); err != nil {
		t.Fatal(err)
	}
	d := carried(t, from.Export(domain(), authority(), now))

	dir := t.TempDir()
	for range 2 { // hosts/ is lost; and the server is restarted
		to := records(t, dir, attest.Readopt{})
		if _, err := to.Import(d, domain(), authority(), false, now); err != nil {
			t.Fatal(err)
		}
		again, err := to.Import(d, domain(), authority(), false, now)
		if err != nil || len(again.Same) != 3 || len(again.Added)+len(again.Replaced) != 0 {
			t.Errorf("a second time: %+v, %v", again, err)
		}
		if got, want := to.List(), from.List(); !reflect.DeepEqual(got, want) {
			t.Errorf("imported\n%+v, want\n%+v", got, want)
		}
	}

	to := records(t, dir, attest.Readopt{})
	refused := func(what string, d attest.Document, td spiffeid.TrustDomain, pin profile.KeyHash) {
		t.Helper()
		was := to.List()
		if _, err := to.Import(d, td, pin, true, now); err == nil {
			t.Errorf("%s: imported", what)
		}
		if !reflect.DeepEqual(to.List(), was) {
			t.Errorf("%s: refused, and something was imported", what)
		}
	}
	refused("another authority", d, domain(), profile.KeyHash{1})
	refused("another trust domain", d, spiffeid.RequireTrustDomainFromString("other"), authority())
	newer := d
	newer.Version++
	refused("another version", newer, domain(), authority())
	twice := d
	twice.Hosts = append(append([]attest.Exported{}, d.Hosts...), d.Hosts[0])
	refused("a host twice", twice, domain(), authority())
	renamed := carried(t, d)
	renamed.Hosts = renamed.Hosts[:1]
	renamed.Hosts[0].Name = "another-name"
	refused("a host of another name with the admission of one on record", renamed, domain(), authority())
	bad := carried(t, d)
	bad.Hosts[0].Pairs = []profile.Pair{{Namespace: "istio-system", ServiceAccount: "fairlead"}}
	refused("the control plane's identity", bad, domain(), authority())

	// What was removed stays removed: here, and where the export went.
	if err := to.Remove("web-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Import(d, domain(), authority(), false, now); !errors.Is(err, attest.ErrConflict) || !strings.Contains(err.Error(), "web-1 was removed") {
		t.Errorf("a host that was removed since: %v", err)
	}
	back := attest.Document{
		Version: d.Version, TrustDomain: d.TrustDomain, Authority: d.Authority,
		Hosts: []attest.Exported{{Host: gone}},
	}
	if _, err := to.Import(back, domain(), authority(), false, now); !errors.Is(err, attest.ErrConflict) {
		t.Errorf("a host that was removed before the export: %v", err)
	}

	// Another host has the name.
	joined(t, to, grantOf("web-1", "web"), 9)
	if _, err := to.Import(d, domain(), authority(), false, now); !errors.Is(err, attest.ErrConflict) || !strings.Contains(err.Error(), "web-1 is on record as another") {
		t.Errorf("a name that is another's: %v", err)
	}
	got, err := to.Import(d, domain(), authority(), true, now)
	if err != nil || len(got.Replaced) != 1 || !reflect.DeepEqual(to.List(), from.List()) {
		t.Errorf("overwritten: %+v, %v", got, err)
	}
	if to = records(t, dir, attest.Readopt{}); !reflect.DeepEqual(to.List(), from.List()) {
		t.Errorf("after a restart: %+v", to.List())
	}
}

func TestReadopt(t *testing.T) {
	t.Parallel()
	now, dir := time.Now(), t.TempDir()
	e := records(t, dir, attest.Readopt{})
	web := joined(t, e, grantOf("web-1", "web"), 1)
	removed, replaced := joined(t, e, grantOf("removed", "web"), 2), joined(t, e, grantOf("replaced", "web"), 3)
	if err := e.Remove("removed"); err != nil {
		t.Fatal(err)
	}
	again := grantOf("replaced", "web")
	again.Replace = true
	joined(t, e, again, 4)
	if err := os.RemoveAll(filepath.Join(dir, "hosts")); err != nil {
		t.Fatal(err)
	}
	proven := func(h attest.Host) attest.Proven {
		return attest.Proven{Name: h.Name, Binding: h.Binding, Pairs: h.Pairs, Key: profile.KeyHash{1}}
	}
	e = records(t, dir, attest.Readopt{})
	if _, err := e.Readopt(proven(web), now); !errors.Is(err, attest.ErrNotFound) {
		t.Errorf("without the setting: %v", err)
	}
	open := attest.Readopt{Until: now.Add(time.Hour), Removed: []string{"listed", "shop/gone"}}
	e = records(t, dir, open)
	if _, err := e.Readopt(proven(web), now.Add(2*time.Hour)); !errors.Is(err, attest.ErrNotFound) {
		t.Errorf("after the time: %v", err)
	}
	got, err := e.Readopt(proven(web), now)
	if err != nil || !got.Readopted.Equal(now) || !reflect.DeepEqual(got.Pairs, web.Pairs) || got.Type != "sidecar" {
		t.Errorf("%+v, %v", got, err)
	}
	listed := proven(web)
	listed.Name, listed.Binding = "listed", profile.Binding{1}
	taken := proven(web)
	taken.Binding = profile.Binding{2}
	empty := attest.Proven{Name: "empty", Binding: profile.Binding{3}}
	for name, p := range map[string]attest.Proven{
		"removed": proven(removed), "replaced": proven(replaced), "listed": listed, "name of another": taken, "nothing shown": empty,
		"direct, and listed": {Direct: true, Binding: profile.Binding{5}, Pairs: []profile.Pair{{Namespace: "shop", ServiceAccount: "gone"}}},
	} {
		if h, err := e.Readopt(p, now); err == nil {
			t.Errorf("%s: admitted as %+v", name, h)
		}
	}
	direct, err := e.Readopt(attest.Proven{Direct: true, Binding: profile.Binding{4}, Pairs: web.Pairs}, now)
	if err != nil || !direct.Direct || !strings.HasPrefix(direct.Name, "direct-") {
		t.Errorf("a direct client: %+v, %v", direct, err)
	}
	e = records(t, dir, attest.Readopt{}) // it stays, and so does that it is so
	h, _, ok := e.Find(web.Binding)
	if !ok || h.Readopted.IsZero() {
		t.Errorf("after a restart: %+v, %v", h, ok)
	}
}
