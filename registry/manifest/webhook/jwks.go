package webhook

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
)

// jwks judges a JSON Web Key Set, or a single key in its place, as far as it must
// be read to be used; the numbers in it are not looked into.
func (c cursor) jwks(text string) {
	var set map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &set); err != nil {
		c.wrong("the keys are no JSON object; write {\"keys\":[...]}")
		return
	}
	list, isSet := set["keys"]
	if !isSet {
		c.because(c.jwk("the key", set))
		return
	}
	var keys []json.RawMessage
	if err := json.Unmarshal(list, &keys); err != nil {
		c.wrong("\"keys\" is not a list; write {\"keys\":[...]}")
		return
	}
	for i, raw := range keys {
		var key map[string]json.RawMessage
		name := fmt.Sprintf("key %d", i)
		if err := json.Unmarshal(raw, &key); err != nil {
			c.wrong("%s is not a JSON object", name)
			continue
		}
		c.because(c.jwk(name, key))
	}
}

// jwk says why a key cannot be read, or "".
func (c cursor) jwk(name string, key map[string]json.RawMessage) string {
	kty, _ := jsonString(key["kty"])
	// A member called "d", whatever its value, makes a key a private one.
	_, private := key["d"]
	var need []string
	switch kty {
	case "RSA":
		need = []string{"n", "e"}
	case "EC":
		need = []string{"x", "y"}
	case "OKP":
		need = []string{"x"}
	case "oct":
		need, private = []string{"k"}, false
	default:
		return fmt.Sprintf("%s has the type %q; its kty must be RSA, EC, OKP or oct", name, kty)
	}
	if private {
		need = append(need, "d")
	}
	if private || kty == "oct" {
		c.warn("%s is a secret one; only public keys are needed here, and everyone who reads this file has it", name)
	}
	if kty == "EC" || kty == "OKP" {
		if _, ok := jsonString(key["crv"]); !ok {
			return name + " names no curve; it needs crv"
		}
	}
	for _, field := range need {
		v, ok := jsonString(key[field])
		if !ok {
			return fmt.Sprintf("%s of type %s lacks %q", name, kty, field)
		}
		if !isBase64(v) {
			return fmt.Sprintf("%q of %s is not base64url", field, name)
		}
	}
	return whyNotKeyNotes(name, key)
}

// whyNotKeyNotes judges what a key says besides its numbers.
func whyNotKeyNotes(name string, key map[string]json.RawMessage) string {
	for _, field := range []string{"kid", "alg", "use", "x5t", "x5t#S256", "x5u"} {
		if raw, set := key[field]; set {
			if _, ok := jsonString(raw); !ok {
				return fmt.Sprintf("%q of %s must be a string", field, name)
			}
		}
	}
	return ""
}

// jsonString reads a string; null counts as an empty one, a missing member as none.
func jsonString(raw json.RawMessage) (string, bool) {
	var s string
	if raw == nil || json.Unmarshal(raw, &s) != nil {
		return "", false
	}
	return s, true
}

// isBase64 takes each of the usual alphabets, padded or not.
func isBase64(s string) bool {
	enc := base64.URLEncoding
	if strings.ContainsAny(s, "+/") {
		enc = base64.StdEncoding
	}
	if !strings.HasSuffix(s, "=") {
		enc = enc.WithPadding(base64.NoPadding)
	}
	_, err := enc.DecodeString(s)
	return err == nil
}
