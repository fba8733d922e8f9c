package svid_test

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

func token(t testing.TB) svid.JoinToken {
	t.Helper()
	secret, err := svid.NewSecret()
	if err != nil {
		t.Fatal(err)
	}
	return svid.JoinToken{
		Secret: secret, Host: "web-1.example", Type: "router",
		Pairs:       []svid.Pair{{Namespace: "shop", ServiceAccount: "web"}, {Namespace: "shop", ServiceAccount: "admin"}},
		TrustDomain: spiffeid.RequireTrustDomainFromString("mesh.test"),
		Servers:     []string{"cp-1.example:15012", "[::1]:15012"}, Pin: profile.KeyHash{1, 2, 3},
	}
}

func TestJoinTokenRoundTrip(t *testing.T) {
	t.Parallel()
	want := token(t)
	text, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := svid.ParseJoinToken(" " + text[:50] + "\n" + text[50:] + "\n")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b svid.JoinToken) bool {
		return a.Secret == b.Secret && fmt.Sprint(a.Host, a.Type, a.Pairs, a.TrustDomain, a.Servers, a.Pin, a.Direct) ==
			fmt.Sprint(b.Host, b.Type, b.Pairs, b.TrustDomain, b.Servers, b.Pin, b.Direct)
	})); d != "" {
		t.Error(d)
	}
	for _, bearer := range []string{text, want.Secret.Bearer()} {
		if s, err := svid.ParseBearer(bearer); err != nil || s != want.Secret {
			t.Errorf("bearer: %v", err)
		}
	}
	if strings.ContainsAny(text, " \n\t'\"$") {
		t.Errorf("the token needs quoting in a shell: %s", text)
	}
}

func TestJoinTokenHidesItsSecret(t *testing.T) {
	t.Parallel()
	tok := token(t)
	text, err := tok.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	log := slog.New(slog.NewJSONHandler(&b, nil))
	log.Info("x", "token", tok, "secret", tok.Secret)
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "token", tok, "secret", tok.Secret)
	fmt.Fprintf(&b, "%v %+v %#v %s %v %#v", tok, tok, tok, tok, tok.Secret, tok.Secret)
	out := b.String()
	for _, form := range []string{
		text, tok.Secret.Bearer(), strings.TrimPrefix(tok.Secret.Bearer(), "flsecret1_"),
		hex.EncodeToString(tok.Secret[:]), strings.Trim(string(tok.Secret[:]), "[]"), string(tok.Secret[:]),
	} {
		if strings.Contains(out, form) {
			t.Errorf("the secret shows as %q in\n%s", form, out)
		}
	}
	if !strings.Contains(out, "web-1.example") {
		t.Error("the host does not show")
	}
}

func TestParseJoinTokenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	text, err := token(t).Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "not a join token"},
		{"other", "eyJhbGciOi", "fairlead token create"},
		{"cut", text[:len(text)-5], "damaged"},
		{"changed", text[:60] + "A" + text[61:], "damaged"},
		{"space_in_it", text[:50] + " " + text[50:], "damaged"},
		{"long", text + strings.Repeat("A", 20<<10), "at most"},
		{"prefix_only", "fljoin1_", "damaged"},
	} {
		if c.name == "changed" && c.text == text {
			c.text = text[:60] + "B" + text[61:]
		}
		_, err := svid.ParseJoinToken(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(*svid.JoinToken){
		"reserved":   func(j *svid.JoinToken) { j.Pairs[0] = svid.Pair{Namespace: "istio-system", ServiceAccount: "fairlead"} },
		"host":       func(j *svid.JoinToken) { j.Host = "../x" },
		"no_pairs":   func(j *svid.JoinToken) { j.Pairs = nil },
		"direct_two": func(j *svid.JoinToken) { j.Direct = true },
		"type":       func(j *svid.JoinToken) { j.Type = "waypoint" },
		"no_server":  func(j *svid.JoinToken) { j.Servers = nil },
		"no_port":    func(j *svid.JoinToken) { j.Servers = []string{"cp.example"} },
		"no_domain":  func(j *svid.JoinToken) { j.TrustDomain = spiffeid.TrustDomain{} },
	} {
		j := token(t)
		harm(&j)
		if _, err := j.Encode(); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
}

func FuzzParseJoinToken(f *testing.F) {
	text, err := token(f).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add("fljoin1_e30")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := svid.ParseJoinToken(s)
		if err != nil {
			return
		}
		again, err := tok.Encode()
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		back, err := svid.ParseJoinToken(again)
		if err != nil || back.Secret != tok.Secret || back.Host != tok.Host {
			t.Fatalf("reads back as another: %v", err)
		}
	})
}

func FuzzParseBearer(f *testing.F) {
	f.Add(token(f).Secret.Bearer())
	f.Fuzz(func(t *testing.T, s string) {
		secret, err := svid.ParseBearer(s)
		if err == nil && !strings.HasPrefix(s, "fljoin1_") && secret.Bearer() != s {
			t.Errorf("%q is read as another secret", s)
		}
	})
}
