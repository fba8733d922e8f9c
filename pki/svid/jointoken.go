package svid

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/pki/profile"
)

// Pair is a namespace and a service account.
type Pair = profile.Pair

// WorkloadName is who a workload is in metrics.
type WorkloadName = profile.WorkloadName

// ParsePair reads NAMESPACE/SERVICE-ACCOUNT.
func ParsePair(s string) (Pair, error) { return profile.ParsePair(s) }

const (
	tokenPrefix  = "fljoin1_"
	bearerPrefix = "flsecret1_"
	checksumLen  = 4
	// maxToken bounds the printed string, before anything is decoded.
	maxToken   = 16 << 10
	maxServers = 16
	// MaxPairs is how many workload identities one token can entitle to.
	MaxPairs = 64
)

// Secret is the part of a join token that proves something: 256 random bits.
type Secret [32]byte

// NewSecret draws a secret.
func NewSecret() (Secret, error) {
	var s Secret
	if _, err := rand.Read(s[:]); err != nil {
		return Secret{}, fmt.Errorf("drawing a secret: %w", err)
	}
	return s, nil
}

// Hash is what may be kept of a secret.
func (s Secret) Hash() [sha256.Size]byte { return sha256.Sum256(s[:]) }

// String hides the secret, so that no print shows it by accident.
func (s Secret) String() string { return "[redacted]" }

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return "svid.Secret([redacted])" }

// LogValue hides the secret from logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue("[redacted]") }

// Bearer is the secret as it travels in the authorization header.
func (s Secret) Bearer() string { return bearerPrefix + base64.RawURLEncoding.EncodeToString(s[:]) }

// ParseBearer reads what a client put behind "Bearer": the secret alone or, from
// a client that knows nothing of join tokens and sends its token file as it is,
// the whole printed token.
func ParseBearer(s string) (Secret, error) {
	if strings.HasPrefix(s, tokenPrefix) {
		t, err := ParseJoinToken(s)
		return t.Secret, err
	}
	text, ok := strings.CutPrefix(s, bearerPrefix)
	if !ok || len(text) != base64.RawURLEncoding.EncodedLen(len(Secret{})) {
		return Secret{}, errors.New("not a join token")
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != len(Secret{}) {
		return Secret{}, errors.New("join token is damaged")
	}
	return Secret(raw), nil
}

// JoinToken is all that a host needs to become one: the proof, and where and to
// whom to give it. Only Secret is secret.
type JoinToken struct {
	Secret Secret
	// Host is the name that the host will have.
	Host string
	// Pairs are the workload identities that the host may ask for, or with
	// Direct the one that the client becomes.
	Pairs []Pair
	// Direct is a token for a client without a host identity.
	Direct bool
	// Type is "sidecar" or "router".
	Type        string
	TrustDomain spiffeid.TrustDomain
	// Servers are host:port of the control plane, tried in turn.
	Servers []string
	// Pin is the SHA-256 of the authority's SubjectPublicKeyInfo: the token is
	// sent to a server whose chain ends in that key, and to no other.
	Pin profile.KeyHash
}

// tokenWire is the token's content as it is encoded. Short keys: a person copies
// the string.
type tokenWire struct {
	Secret      []byte   `json:"s"`
	Host        string   `json:"h"`
	Pairs       []string `json:"w"`
	Direct      bool     `json:"d,omitempty"`
	Type        string   `json:"y,omitempty"`
	TrustDomain string   `json:"t"`
	Servers     []string `json:"a"`
	Pin         []byte   `json:"p"`
}

// Encode is the token as it is printed and copied. It holds the secret.
func (t JoinToken) Encode() (string, error) {
	if err := t.check(); err != nil {
		return "", err
	}
	w := tokenWire{
		Secret: t.Secret[:], Host: t.Host, Direct: t.Direct, TrustDomain: t.TrustDomain.Name(),
		Servers: t.Servers, Pin: t.Pin[:],
	}
	if t.Type != "sidecar" {
		w.Type = t.Type
	}
	for _, p := range t.Pairs {
		w.Pairs = append(w.Pairs, p.String())
	}
	payload, err := json.Marshal(w) //nolint:gosec // G117: the secret is what a token is for
	if err != nil {
		return "", fmt.Errorf("encoding a join token: %w", err)
	}
	sum := sha256.Sum256(payload)
	s := tokenPrefix + base64.RawURLEncoding.EncodeToString(append(payload, sum[:checksumLen]...))
	if len(s) > maxToken {
		return "", fmt.Errorf("join token of %d characters: at most %d", len(s), maxToken)
	}
	return s, nil
}

// String tells what the token is for, without the secret; see Encode.
func (t JoinToken) String() string {
	return fmt.Sprintf("join token for host %q of %q", t.Host, t.TrustDomain.Name())
}

// GoString is String: %#v shows no secret either.
func (t JoinToken) GoString() string { return t.String() }

// LogValue is the token without its secret.
func (t JoinToken) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("host", t.Host),
		slog.String("trust_domain", t.TrustDomain.Name()),
		slog.Any("servers", t.Servers),
	)
}

// ParseJoinToken reads what Encode printed; line breaks that a terminal or a
// mail put into it do not matter.
func ParseJoinToken(s string) (JoinToken, error) {
	s = strings.TrimSpace(s)
	if len(s) > maxToken {
		return JoinToken{}, fmt.Errorf("join token of %d characters: at most %d", len(s), maxToken)
	}
	text, ok := strings.CutPrefix(s, tokenPrefix)
	if !ok {
		return JoinToken{}, fmt.Errorf("not a join token: one begins with %q; make one with fairlead token create", tokenPrefix)
	}
	errDamaged := errors.New("join token is damaged: copy it whole, it is one word")
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) < checksumLen {
		return JoinToken{}, errDamaged
	}
	payload, sum := raw[:len(raw)-checksumLen], raw[len(raw)-checksumLen:]
	if want := sha256.Sum256(payload); string(want[:checksumLen]) != string(sum) {
		return JoinToken{}, errDamaged
	}
	var w tokenWire
	if err := json.Unmarshal(payload, &w); err != nil {
		return JoinToken{}, fmt.Errorf("decoding a join token: %w", err)
	}
	return w.token()
}

func (w tokenWire) token() (JoinToken, error) {
	if len(w.Secret) != len(Secret{}) || len(w.Pin) != len(profile.KeyHash{}) {
		return JoinToken{}, errors.New("join token with a secret or pin of the wrong length")
	}
	td, err := spiffeid.TrustDomainFromString(w.TrustDomain)
	if err != nil {
		return JoinToken{}, fmt.Errorf("join token: %w", err)
	}
	t := JoinToken{
		Secret: Secret(w.Secret), Host: w.Host, Direct: w.Direct, Type: w.Type,
		TrustDomain: td, Servers: w.Servers, Pin: profile.KeyHash(w.Pin),
	}
	if t.Type == "" {
		t.Type = "sidecar"
	}
	for _, s := range w.Pairs {
		p, err := profile.ParsePair(s)
		if err != nil {
			return JoinToken{}, fmt.Errorf("join token: %w", err)
		}
		t.Pairs = append(t.Pairs, p)
	}
	return t, t.check()
}

func (t JoinToken) check() error {
	if err := profile.CheckHostName(t.Host); err != nil {
		return fmt.Errorf("join token: %w", err)
	}
	for _, p := range t.Pairs {
		if err := p.Check(); err != nil {
			return fmt.Errorf("join token: %w", err)
		}
	}
	switch {
	case t.TrustDomain.IsZero():
		return errors.New("join token without a trust domain")
	case len(t.Pairs) == 0 || len(t.Pairs) > MaxPairs:
		return fmt.Errorf("join token with %d workloads: want 1 to %d", len(t.Pairs), MaxPairs)
	case t.Direct && len(t.Pairs) != 1:
		return errors.New("direct join token with several workloads: want one")
	case t.Type != "sidecar" && t.Type != "router":
		return fmt.Errorf("join token of type %q: want sidecar or router", t.Type)
	case len(t.Servers) == 0 || len(t.Servers) > maxServers:
		return fmt.Errorf("join token with %d servers: want 1 to %d", len(t.Servers), maxServers)
	}
	for _, s := range t.Servers {
		if _, _, err := net.SplitHostPort(s); err != nil {
			return fmt.Errorf("join token: server %q: want HOST:PORT", s)
		}
	}
	return nil
}
