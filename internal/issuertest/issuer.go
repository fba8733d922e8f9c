package issuertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Issuer signs tokens with one key, ES256.
type Issuer struct {
	tb   testing.TB
	Name string
	kid  string
	key  *ecdsa.PrivateKey
}

// New makes an issuer with a key of its own, which has an ID.
func New(tb testing.TB, name, kid string) *Issuer {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return &Issuer{tb, name, kid, key}
}

// KeySet is the JSON Web Key Set of some issuers.
func KeySet(issuers ...*Issuer) string { return keySet(issuers, false) }

// PrivateKeySet is a key set with the private half of each key, as nobody must publish it.
func PrivateKeySet(issuers ...*Issuer) string { return keySet(issuers, true) }

func keySet(issuers []*Issuer, private bool) string {
	var set jose.JSONWebKeySet
	for _, i := range issuers {
		k := jose.JSONWebKey{Key: i.key.Public(), KeyID: i.kid}
		if private {
			k.Key = i.key
		}
		set.Keys = append(set.Keys, k)
	}
	doc, err := json.Marshal(set)
	if err != nil {
		issuers[0].tb.Fatal(err)
	}
	return string(doc)
}

// Token is a token for the subject "me" and the audience "us" that is good for an hour. Claims
// are added, or replace these; nil takes one out.
func (i *Issuer) Token(claims map[string]any) string {
	i.tb.Helper()
	all := map[string]any{"iss": i.Name, "sub": "me", "aud": "us", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	payload, err := json.Marshal(all)
	if err != nil {
		i.tb.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: i.kid}}, nil)
	if err != nil {
		i.tb.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		i.tb.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		i.tb.Fatal(err)
	}
	return text
}
