package jwks

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	stdjson "encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"

	"github.com/fairlead/fairlead/internal/safetext"
)

// Bounds of one key set.
const (
	// MaxBody bounds what is read of an answer or a file, in bytes. Istio has no bound.
	MaxBody = 1 << 20
	// MaxKeys bounds the keys of a set.
	MaxKeys = 100
	// MaxSet bounds a set as it is sent to proxies, in bytes.
	MaxSet = 64 << 10
	// maxKeyID bounds the kid of a key, in bytes.
	maxKeyID = 512
	// minRSA is RFC 7518's least modulus, maxRSA the largest that Envoy's TLS library
	// takes, in bits.
	minRSA, maxRSA = 2048, 8192
	// maxUnusable bounds the keys that are named as left out.
	maxUnusable = 10
	// shown bounds text of others in errors, in bytes.
	shown = 80
)

// ErrNoKeys says that a key set is well-formed, and that no key in it can be used: its issuer
// has taken back all keys of before.
var ErrNoKeys = errors.New("no key of the set can be used")

// Set is the usable public keys of an issuer. It is immutable.
type Set struct {
	// JSON is a JSON Web Key Set with these keys and nothing else. Equal keys have equal
	// bytes, in whatever order and with whatever else the issuer publishes them.
	JSON string
	// Keys are the keys, in the order of JSON.
	Keys []Key
}

// Key says what a key is, for people.
type Key struct {
	// ID is its kid, or empty.
	ID string `json:"kid,omitempty"`
	// Type is RSA, EC or OKP.
	Type string `json:"kty"`
	// Algorithm is the only one of tokens that this key verifies; empty means each of its
	// type.
	Algorithm string `json:"alg,omitempty"`
}

// Unusable is a key that was left out of a set.
type Unusable struct {
	// Key names it: its place in the set, from 0, and its kid.
	Key string `json:"key"`
	// Reason says why.
	Reason string `json:"reason"`
	// secret says that its secret half was published, too.
	secret bool
}

func (u Unusable) String() string { return u.Key + ": " + u.Reason }

// Parse reads a JSON Web Key Set (RFC 7517), or an object whose members are certificates by
// kid, as Envoy does (its source/common/jwt/jwks.cc), and is stricter: symmetric and private
// keys, keys that are not for signatures, and RSA keys below 2048 bits are left out, too.
// Keys that are left out are named, the first few. [ErrNoKeys] is the error for a set without
// keys, and for one of which all are left out.
func Parse(text []byte) (*Set, []Unusable, error) {
	if len(text) > MaxBody {
		return nil, nil, fmt.Errorf("the key set is longer than %d bytes", MaxBody)
	}
	// The standard library bounds the depth; the other one compares names exactly, as Envoy
	// does, and refuses a name that is there twice.
	if !stdjson.Valid(text) {
		return nil, nil, errors.New("the key set is not JSON")
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || members == nil {
		return nil, nil, errors.New(`the key set is not a JSON object with "keys"`)
	}
	var keys []parsedKey
	var unusable []Unusable
	if list, ok := members["keys"]; ok {
		var raw []json.RawMessage
		if err := json.Unmarshal(list, &raw); err != nil || raw == nil {
			return nil, nil, errors.New(`"keys" of the key set is not a list`)
		}
		if len(raw) > MaxKeys {
			return nil, nil, fmt.Errorf("the key set has %d keys; at most %d are taken", len(raw), MaxKeys)
		}
		keys, unusable = parseKeys(raw)
	} else {
		var err error
		if keys, unusable, err = parseCertificates(members); err != nil {
			return nil, nil, err
		}
	}
	if len(keys) == 0 {
		if len(unusable) == 0 {
			return nil, nil, fmt.Errorf("%w: it is empty", ErrNoKeys)
		}
		worst := max(0, slices.IndexFunc(unusable, func(u Unusable) bool { return u.secret }))
		return nil, few(unusable), fmt.Errorf("%w: %s", ErrNoKeys, unusable[worst])
	}
	set := join(keys)
	if len(set.JSON) > MaxSet {
		return nil, nil, fmt.Errorf("the usable keys of the set have %d bytes; at most %d are taken", len(set.JSON), MaxSet)
	}
	return set, few(unusable), nil
}

func few(list []Unusable) []Unusable { return list[:min(len(list), maxUnusable)] }

// parsedKey is a key that can be used.
type parsedKey struct {
	Key

	json []byte
}

// join makes the set. What is equal except for its order has equal bytes.
func join(keys []parsedKey) *Set {
	slices.SortFunc(keys, func(a, b parsedKey) int { return bytes.Compare(a.json, b.json) })
	keys = slices.CompactFunc(keys, func(a, b parsedKey) bool { return bytes.Equal(a.json, b.json) })
	s := &Set{}
	var b strings.Builder
	b.WriteString(`{"keys":[`)
	for i, k := range keys {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(k.json)
		s.Keys = append(s.Keys, k.Key)
	}
	b.WriteString(`]}`)
	s.JSON = b.String()
	return s
}

func parseKeys(list []json.RawMessage) (keys []parsedKey, unusable []Unusable) {
	for i, raw := range list {
		name := fmt.Sprintf("key %d", i)
		var members map[string]json.RawMessage
		if err := json.Unmarshal(raw, &members); err != nil || members == nil {
			unusable = append(unusable, Unusable{Key: name, Reason: "it is not a JSON object, or has a member twice"})
			continue
		}
		kid, _ := text(members["kid"])
		if kid != "" {
			name += fmt.Sprintf(" (kid %q)", safetext.Sanitize(kid, shown))
		}
		if reason := whySecret(members); reason != "" {
			unusable = append(unusable, Unusable{Key: name, Reason: reason, secret: reason == isPrivate})
			continue
		}
		key, err := parseKey(kid, members)
		if err != nil {
			unusable = append(unusable, Unusable{Key: name, Reason: err.Error()})
			continue
		}
		keys = append(keys, key)
	}
	return keys, unusable
}

const (
	isPrivate   = "it is a private key, which the issuer must keep to itself: everybody who has seen it can sign tokens; have the issuer replace it"
	isSymmetric = "it is a symmetric key (kty oct): whoever can verify with it can sign, too; have the issuer sign with a key pair"
)

func whySecret(members map[string]json.RawMessage) string {
	if kty, _ := text(members["kty"]); kty == "oct" {
		return isSymmetric
	}
	for _, name := range []string{"d", "p", "q", "dp", "dq", "qi", "oth"} {
		if _, ok := members[name]; ok {
			return isPrivate
		}
	}
	if _, ok := members["k"]; ok {
		return isSymmetric
	}
	return ""
}

// parseKey reads one public key. What a key has besides is not looked at: Envoy does not
// either.
func parseKey(kid string, members map[string]json.RawMessage) (parsedKey, error) {
	if len(kid) > maxKeyID {
		return parsedKey{}, fmt.Errorf("its kid is longer than %d bytes", maxKeyID)
	}
	if use, ok := text(members["use"]); ok && use != "sig" {
		return parsedKey{}, fmt.Errorf("it is not for signatures (use %q)", safetext.Sanitize(use, shown))
	}
	var ops []string
	if raw, ok := members["key_ops"]; ok && (json.Unmarshal(raw, &ops) != nil || !slices.Contains(ops, "verify")) {
		return parsedKey{}, errors.New("it is not for the verification of signatures (key_ops)")
	}
	alg, _ := text(members["alg"])
	kty, _ := text(members["kty"])
	switch kty {
	case "RSA":
		return parseRSA(kid, alg, members)
	case "EC":
		return parseEC(kid, alg, members)
	case "OKP":
		return parseOKP(kid, alg, members)
	case "":
		return parsedKey{}, errors.New("it has no type (kty)")
	default:
		return parsedKey{}, fmt.Errorf("its type is %q; Envoy knows RSA, EC and OKP", safetext.Sanitize(kty, shown))
	}
}

func parseRSA(kid, alg string, members map[string]json.RawMessage) (parsedKey, error) {
	n, err := number(members, "n")
	if err != nil {
		return parsedKey{}, err
	}
	e, err := number(members, "e")
	if err != nil {
		return parsedKey{}, err
	}
	// As Envoy: other exponents are refused. The library below would cut a long one.
	if !slices.Equal(e, []byte{3}) && !slices.Equal(e, []byte{1, 0, 1}) {
		return parsedKey{}, errors.New("its exponent (e) is neither 3 nor 65537")
	}
	return finish("RSA", kid, alg, map[string][]byte{"n": n, "e": e}, "")
}

func parseEC(kid, alg string, members map[string]json.RawMessage) (parsedKey, error) {
	crv, _ := text(members["crv"])
	if crv == "" { // as Envoy
		crv = map[string]string{"": "P-256", "ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[alg]
	}
	size, known := map[string]int{"P-256": 32, "P-384": 48, "P-521": 66}[crv]
	if !known {
		return parsedKey{}, fmt.Errorf("its curve is %q; Envoy knows P-256, P-384 and P-521", safetext.Sanitize(crv, shown))
	}
	fields := map[string][]byte{}
	for _, name := range []string{"x", "y"} {
		v, err := number(members, name)
		if err != nil {
			return parsedKey{}, err
		}
		if len(v) > size {
			return parsedKey{}, fmt.Errorf("its %q is too long for the curve", name)
		}
		fields[name] = append(make([]byte, size-len(v)), v...)
	}
	return finish("EC", kid, alg, fields, crv)
}

func parseOKP(kid, alg string, members map[string]json.RawMessage) (parsedKey, error) {
	crv, _ := text(members["crv"])
	if crv != "Ed25519" {
		return parsedKey{}, fmt.Errorf("its curve is %q; Envoy knows Ed25519", safetext.Sanitize(crv, shown))
	}
	x, err := decode(members, "x")
	if err != nil {
		return parsedKey{}, err
	}
	if len(x) != ed25519.PublicKeySize {
		return parsedKey{}, fmt.Errorf("its \"x\" has %d bytes, not %d", len(x), ed25519.PublicKeySize)
	}
	return finish("OKP", kid, alg, map[string][]byte{"x": x}, crv)
}

// finish has the library read the numbers of a key, and writes them as the key of a Set.
func finish(kty, kid, alg string, fields map[string][]byte, crv string) (parsedKey, error) {
	raw := map[string]string{"kty": kty}
	if crv != "" {
		raw["crv"] = crv
	}
	for name, v := range fields {
		raw[name] = base64.RawURLEncoding.EncodeToString(v)
	}
	doc, err := json.Marshal(raw)
	if err != nil {
		return parsedKey{}, fmt.Errorf("reading it: %w", err)
	}
	var jwk jose.JSONWebKey
	if err := jwk.UnmarshalJSON(doc); err != nil {
		return parsedKey{}, fmt.Errorf("reading it: %w", err)
	}
	return export(kid, alg, jwk.Key)
}

// export writes a public key as part of a Set.
func export(kid, alg string, public any) (parsedKey, error) {
	var kty string
	var algs []string
	switch k := public.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSA || bits > maxRSA {
			return parsedKey{}, fmt.Errorf("it is an RSA key of %d bits; from %d to %d are taken", bits, minRSA, maxRSA)
		}
		if k.N.Bit(0) == 0 {
			return parsedKey{}, errors.New("its modulus (n) is even")
		}
		kty, algs = "RSA", []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
	case *ecdsa.PublicKey:
		kty, algs = "EC", []string{map[string]string{"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}[k.Curve.Params().Name]}
	case ed25519.PublicKey:
		kty, algs = "OKP", []string{"EdDSA"}
	default:
		return parsedKey{}, fmt.Errorf("it is a %T", public)
	}
	if alg != "" && !slices.Contains(algs, alg) {
		return parsedKey{}, fmt.Errorf("its algorithm is %q; a key of its kind is for %s", safetext.Sanitize(alg, shown), strings.Join(algs, ", "))
	}
	if len(algs) == 1 {
		// Without alg, Envoy tries an Ed25519 key for any token, and gives up at once if the
		// length of the signature is another one, without trying the keys behind it.
		alg = algs[0]
	}
	doc, err := jose.JSONWebKey{Key: public, KeyID: kid, Algorithm: alg}.MarshalJSON()
	if err != nil {
		return parsedKey{}, fmt.Errorf("writing it: %w", err)
	}
	return parsedKey{Key{ID: kid, Type: kty, Algorithm: alg}, doc}, nil
}

// parseCertificates reads an object of certificates by kid, the form that Google publishes
// beside key sets. Envoy takes RSA keys of it.
func parseCertificates(members map[string]json.RawMessage) (keys []parsedKey, unusable []Unusable, err error) {
	if len(members) == 0 || len(members) > MaxKeys {
		return nil, nil, errors.New(`the key set has no "keys"`)
	}
	kids := make([]string, 0, len(members))
	for kid, raw := range members {
		if pemText, _ := text(raw); !strings.HasPrefix(pemText, "-----BEGIN CERTIFICATE-----") {
			return nil, nil, errors.New(`the key set has no "keys"`)
		}
		kids = append(kids, kid)
	}
	slices.Sort(kids)
	for _, kid := range kids {
		pemText, _ := text(members[kid])
		key, err := parseCertificate(kid, pemText)
		if err != nil {
			unusable = append(unusable, Unusable{Key: fmt.Sprintf("certificate %q", safetext.Sanitize(kid, shown)), Reason: err.Error()})
			continue
		}
		keys = append(keys, key)
	}
	return keys, unusable, nil
}

func parseCertificate(kid, pemText string) (parsedKey, error) {
	if kid == "" || len(kid) > maxKeyID {
		return parsedKey{}, fmt.Errorf("its kid is empty, or longer than %d bytes", maxKeyID)
	}
	block, _ := pem.Decode([]byte(pemText))
	if block == nil || block.Type != "CERTIFICATE" {
		return parsedKey{}, errors.New("it is not a certificate in PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return parsedKey{}, errors.New("it cannot be read as a certificate")
	}
	public, ok := cert.PublicKey.(*rsa.PublicKey)
	if !ok {
		return parsedKey{}, errors.New("its key is not an RSA key; Envoy takes no other from certificates")
	}
	if public.E != 3 && public.E != 65537 {
		return parsedKey{}, errors.New("its exponent is neither 3 nor 65537")
	}
	return export(kid, "", public)
}

// text reads a string; everything else is none.
func text(raw json.RawMessage) (string, bool) {
	var s *string
	if raw == nil || json.Unmarshal(raw, &s) != nil || s == nil {
		return "", false
	}
	return *s, true
}

// decode reads bytes in base64url, padded or not, as Envoy does.
func decode(members map[string]json.RawMessage, name string) ([]byte, error) {
	s, ok := text(members[name])
	if !ok || s == "" {
		return nil, fmt.Errorf("it has no %q", name)
	}
	v, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(s, "="))
	if err != nil {
		return nil, fmt.Errorf("its %q is not base64url", name)
	}
	return v, nil
}

// number is decode without leading zeros.
func number(members map[string]json.RawMessage, name string) ([]byte, error) {
	v, err := decode(members, name)
	if err != nil {
		return nil, err
	}
	return bytes.TrimLeft(v, "\x00"), nil
}
