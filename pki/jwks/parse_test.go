package jwks

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// testKeys are made once: RSA keys take long.
var testKeys = sync.OnceValue(func() map[string]crypto.Signer {
	keys := map[string]crypto.Signer{}
	var err error
	put := func(name string, k crypto.Signer, e error) {
		keys[name], err = k, errors.Join(err, e)
	}
	for _, name := range []string{"rsa", "rsa2"} {
		k, e := rsa.GenerateKey(rand.Reader, 2048)
		put(name, k, e)
	}
	weak, e := rsa.GenerateKey(rand.Reader, 1024)
	put("weak", weak, e)
	for name, curve := range map[string]elliptic.Curve{"p256": elliptic.P256(), "p384": elliptic.P384(), "p521": elliptic.P521()} {
		k, e := ecdsa.GenerateKey(curve, rand.Reader)
		put(name, k, e)
	}
	_, ed, e := ed25519.GenerateKey(rand.Reader)
	put("ed", ed, e)
	if err != nil {
		panic(err)
	}
	return keys
})

// jwk is a key as JSON; edit changes its members.
func jwk(tb testing.TB, key any, kid string, edit ...func(map[string]any)) string {
	tb.Helper()
	doc, err := jose.JSONWebKey{Key: key, KeyID: kid}.MarshalJSON()
	if err != nil {
		tb.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(doc, &m); err != nil {
		tb.Fatal(err)
	}
	for _, f := range edit {
		f(m)
	}
	if doc, err = json.Marshal(m); err != nil {
		tb.Fatal(err)
	}
	return string(doc)
}

func pub(name string) any { return testKeys()[name].Public() }

func with(name string, v any) func(map[string]any) {
	return func(m map[string]any) { m[name] = v }
}

func without(name string) func(map[string]any) {
	return func(m map[string]any) { delete(m, name) }
}

func set(keys ...string) string { return `{"keys":[` + strings.Join(keys, ",") + `]}` }

func TestParseTakesKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, key string
		want      Key
	}{
		{"rsa", jwk(t, pub("rsa"), "a"), Key{"a", "RSA", ""}},
		{"rsa-alg", jwk(t, pub("rsa"), "a", with("alg", "PS384"), with("use", "sig")), Key{"a", "RSA", "PS384"}},
		{"p256", jwk(t, pub("p256"), "b"), Key{"b", "EC", "ES256"}},
		{"p384", jwk(t, pub("p384"), ""), Key{"", "EC", "ES384"}},
		{"p521", jwk(t, pub("p521"), "b", with("alg", "ES512")), Key{"b", "EC", "ES512"}},
		{"p256-without-crv", jwk(t, pub("p256"), "b", without("crv")), Key{"b", "EC", "ES256"}},
		{"ed", jwk(t, pub("ed"), "c"), Key{"c", "OKP", "EdDSA"}},
		{"key-ops", jwk(t, pub("rsa"), "a", with("key_ops", []string{"verify"})), Key{"a", "RSA", ""}},
		{"padded", jwk(t, pub("rsa"), "a", func(m map[string]any) { m["n"] = m["n"].(string) + "==" }), Key{"a", "RSA", ""}},
		{"strange-x5", jwk(t, pub("rsa"), "a", with("x5c", []string{"no"}), with("x5t", "??"), with("x5u", 7)), Key{"a", "RSA", ""}},
		{"kid-is-number", jwk(t, pub("rsa"), "", with("kid", 7)), Key{"", "RSA", ""}},
		{"extra", jwk(t, pub("rsa"), "a", with("issuer", map[string]any{"d": 1})), Key{"a", "RSA", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, unusable, err := Parse([]byte(set(c.key)))
			if err != nil || len(unusable) > 0 {
				t.Fatal(err, unusable)
			}
			if !slices.Equal(got.Keys, []Key{c.want}) {
				t.Errorf("keys %v, want %v", got.Keys, c.want)
			}
			again, _, err := Parse([]byte(got.JSON))
			if err != nil || again.JSON != got.JSON {
				t.Errorf("%s becomes %v, %v", got.JSON, again, err)
			}
			for _, member := range []string{`"x5`, `"use"`, `"key_ops"`, `"issuer"`} { // a number may contain the bare words
				if strings.Contains(got.JSON, member) {
					t.Errorf("%s has a member that proxies do not need", got.JSON)
				}
			}
		})
	}
}

func TestParseLeavesKeysOut(t *testing.T) {
	t.Parallel()
	good := jwk(t, pub("rsa"), "good")
	for _, c := range []struct{ name, key, want string }{
		{"private-rsa", jwk(t, testKeys()["rsa2"], "x"), isPrivate},
		{"private-ec", jwk(t, testKeys()["p256"], "x"), isPrivate},
		{"private-ed", jwk(t, testKeys()["ed"], "x"), isPrivate},
		{"private-prime-only", jwk(t, pub("rsa2"), "x", with("p", "AQAB")), isPrivate},
		{"private-null", jwk(t, pub("rsa2"), "x", with("d", nil)), isPrivate},
		{"symmetric", jwk(t, []byte("0123456789abcdef0123456789abcdef"), "x"), isSymmetric},
		{"symmetric-rsa", jwk(t, pub("rsa2"), "x", with("k", "AQAB")), isSymmetric},
		{"weak", jwk(t, pub("weak"), "x"), "1024 bits"},
		{"even", jwk(t, pub("rsa2"), "x", with("n", b64(new(big.Int).Lsh(big.NewInt(1), 2047)))), "even"},
		{"huge", jwk(t, pub("rsa2"), "x", with("n", b64(new(big.Int).Add(new(big.Int).Lsh(big.NewInt(1), 9000), big.NewInt(1))))), "9001 bits"},
		{"exponent", jwk(t, pub("rsa2"), "x", with("e", "Ag")), "exponent"},
		{"exponent-that-wraps", jwk(t, pub("rsa2"), "x", with("e", b64(new(big.Int).Add(new(big.Int).Lsh(big.NewInt(1), 64), big.NewInt(65537))))), "exponent"},
		{"rsa-for-encryption", jwk(t, pub("rsa2"), "x", with("use", "enc")), "not for signatures"},
		{"ops", jwk(t, pub("rsa2"), "x", with("key_ops", []string{"encrypt"})), "key_ops"},
		{"rsa-es", jwk(t, pub("rsa2"), "x", with("alg", "ES256")), "algorithm"},
		{"rsa-hs", jwk(t, pub("rsa2"), "x", with("alg", "HS256")), "algorithm"},
		{"rsa-none", jwk(t, pub("rsa2"), "x", with("alg", "none")), "algorithm"},
		{"ec-rs", jwk(t, pub("p256"), "x", with("alg", "RS256")), "algorithm"},
		{"ec-other-curve", jwk(t, pub("p256"), "x", with("alg", "ES384")), "algorithm"},
		{"ed-alg", jwk(t, pub("ed"), "x", with("alg", "ES256")), "algorithm"},
		{"off-curve", jwk(t, pub("p256"), "x", with("y", b64(big.NewInt(5)))), "curve"},
		{"p224", jwk(t, pub("p256"), "x", with("crv", "P-224")), "P-224"},
		{"x25519", jwk(t, pub("ed"), "x", with("crv", "X25519")), "X25519"},
		{"ed-short", jwk(t, pub("ed"), "x", with("x", "AAAA")), "3 bytes"},
		{"no-n", jwk(t, pub("rsa2"), "x", without("n")), `"n"`},
		{"n-number", jwk(t, pub("rsa2"), "x", with("n", 5)), `"n"`},
		{"n-no-base64", jwk(t, pub("rsa2"), "x", with("n", "*")), "base64"},
		{"no-kty", jwk(t, pub("rsa2"), "x", without("kty")), "no type"},
		{"kty", jwk(t, pub("rsa2"), "x", with("kty", "rsa")), `"rsa"`},
		{"kid-long", jwk(t, pub("rsa2"), strings.Repeat("k", maxKeyID+1)), "kid"},
		{"text", `"a key"`, "not a JSON object"},
		{"null", `null`, "not a JSON object"},
		{"twice", strings.Replace(jwk(t, pub("rsa2"), "x"), `"kty":"RSA"`, `"kty":"RSA","kty":"RSA"`, 1), "twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, unusable, err := Parse([]byte(set(c.key, good)))
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Keys) != 1 || got.Keys[0].ID != "good" {
				t.Errorf("keys %v", got.Keys)
			}
			if len(unusable) != 1 || !strings.Contains(unusable[0].Reason, c.want) || !strings.HasPrefix(unusable[0].Key, "key 0") {
				t.Errorf("%v, want %q", unusable, c.want)
			}
			got, unusable, err = Parse([]byte(set(c.key)))
			if !errors.Is(err, ErrNoKeys) || !strings.Contains(err.Error(), c.want) || got != nil {
				t.Errorf("alone: %v, %v", got, err)
			}
			if len(unusable) != 1 {
				t.Errorf("alone: %v", unusable)
			}
		})
	}
}

func b64(n *big.Int) string {
	doc, _ := json.Marshal(n.Bytes())
	return strings.NewReplacer("+", "-", "/", "_", "=", "", `"`, "").Replace(string(doc))
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	many := make([]string, MaxKeys+1)
	for i := range many {
		many[i] = jwk(t, pub("p256"), strconv.Itoa(i))
	}
	long := make([]string, MaxKeys)
	for i := range long {
		long[i] = jwk(t, pub("rsa"), fmt.Sprint(strings.Repeat("k", maxKeyID-4), i))
	}
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "not JSON"},
		{"html", "<html></html>", "not JSON"},
		{"half", `{"keys":[`, "not JSON"},
		{"two", `{"keys":[]}{"keys":[]}`, "not JSON"},
		{"gzip", "\x1f\x8b\x08\x00", "not JSON"},
		{"mark", "\xef\xbb\xbf" + set(), "not JSON"},
		{"deep", strings.Repeat("[", MaxBody), "not JSON"},
		{"deep-and-closed", `{"keys":` + strings.Repeat("[", MaxBody/2-10) + strings.Repeat("]", MaxBody/2-10) + "}", "not JSON"},
		{"null", "null", "not a JSON object"},
		{"list", "[]", "not a JSON object"},
		{"no-keys", `{"Keys":[]}`, `no "keys"`},
		{"error", `{"error":"not found"}`, `no "keys"`},
		{"one-key", jwk(t, pub("rsa"), "a"), `no "keys"`},
		{"keys-object", `{"keys":{}}`, "not a list"},
		{"keys-null", `{"keys":null}`, "not a list"},
		{"keys-twice", `{"keys":[],"keys":[]}`, "not a JSON object"},
		{"nothing", set(), "it is empty"},
		{"many", set(many...), "101 keys"},
		{"long", set(long...), "bytes"},
		{"large", set(jwk(t, pub("rsa"), "a")) + strings.Repeat(" ", MaxBody), "longer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, _, err := Parse([]byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, %v, want %q", got, err, c.want)
			}
		})
	}
}

// Issuers publish their keys in another order each time, or with other notes.
func TestEqualKeysHaveEqualBytes(t *testing.T) {
	t.Parallel()
	a, b := jwk(t, pub("rsa"), "a"), jwk(t, pub("p256"), "b")
	x, _, err := Parse([]byte(set(a, b)))
	if err != nil {
		t.Fatal(err)
	}
	y, _, err := Parse([]byte(set(b, jwk(t, pub("rsa"), "a", with("use", "sig"), with("x5t", "y")), b)))
	if err != nil {
		t.Fatal(err)
	}
	if x.JSON != y.JSON {
		t.Errorf("%s\n%s", x.JSON, y.JSON)
	}
}

func TestParseTakesCertificates(t *testing.T) {
	t.Parallel()
	certificate := func(name string) string {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, pub(name), testKeys()[name])
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	text, _ := json.Marshal(map[string]string{"one": certificate("rsa"), "two": certificate("p256"), "three": "-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n"})
	got, unusable, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	want, _, _ := Parse([]byte(set(jwk(t, pub("rsa"), "one"))))
	if got.JSON != want.JSON {
		t.Errorf("%s, want %s", got.JSON, want.JSON)
	}
	if len(unusable) != 2 {
		t.Errorf("left out: %v", unusable)
	}
}

func TestUnusableKeysAreNamedTheFirstFew(t *testing.T) {
	t.Parallel()
	keys := []string{jwk(t, pub("rsa"), "a")}
	for range MaxKeys - 1 {
		keys = append(keys, jwk(t, pub("weak"), "\x1b[31m"+strings.Repeat("x", 300)))
	}
	_, unusable, err := Parse([]byte(set(keys...)))
	if err != nil || len(unusable) != maxUnusable {
		t.Fatalf("%d keys are named, want %d; %v", len(unusable), maxUnusable, err)
	}
	if s := unusable[0].String(); strings.Contains(s, "\x1b") || len(s) > 300 {
		t.Errorf("%q", s)
	}
}

func FuzzParse(f *testing.F) {
	for name := range testKeys() {
		f.Add([]byte(set(jwk(f, pub(name), name))))
		f.Add([]byte(set(jwk(f, testKeys()[name], name))))
	}
	f.Add([]byte(`{"keys":[{"kty":"oct","k":"AQAB"}]}`))
	f.Add([]byte(`{"a":"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, unusable, err := Parse(text)
		if len(unusable) > maxUnusable {
			t.Errorf("%d keys are named", len(unusable))
		}
		if err != nil {
			if s != nil {
				t.Errorf("a set beside %v", err)
			}
			return
		}
		if len(s.JSON) > MaxSet || len(s.Keys) > MaxKeys {
			t.Errorf("%d keys, %d bytes", len(s.Keys), len(s.JSON))
		}
		if len(s.Keys) == 0 {
			t.Errorf("%s without a key", s.JSON)
		}
		again, left, err := Parse([]byte(s.JSON))
		if err != nil || again.JSON != s.JSON || len(left) > 0 {
			t.Errorf("%s becomes %v (%v, %v)", s.JSON, again, left, err)
		}
		var keys struct{ Keys []map[string]any }
		if err := json.Unmarshal([]byte(s.JSON), &keys); err != nil {
			t.Fatal(err)
		}
		for _, k := range keys.Keys {
			for _, name := range []string{"d", "p", "q", "dp", "dq", "qi", "oth", "k"} {
				if _, ok := k[name]; ok {
					t.Errorf("%s has the secret %q", s.JSON, name)
				}
			}
		}
	})
}
