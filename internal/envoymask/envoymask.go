// Package envoymask masks secrets in the JSON of Envoy's configuration, before a person
// or a file gets it. Envoy masks most of them itself in its config_dump; what comes from
// elsewhere, or is in a field that Envoy shows, is masked here.
//
// It keeps no state; any goroutine may call it.
package envoymask

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
)

// Masked replaces a secret.
const Masked = "[masked]"

// JSON masks the secrets in a document.
func JSON(b []byte) ([]byte, error) { return edit(b, mask) }

// Without leaves out of a document what is masked. Fields that are masked may be messages,
// of which a decoder would not take a text.
func Without(b []byte) ([]byte, error) {
	if !bytes.Contains(b, []byte(Masked)) {
		return b, nil
	}
	return edit(b, without)
}

func without(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if e == Masked {
				delete(v, k)
			} else {
				v[k] = without(e)
			}
		}
	case []any:
		for i, e := range v {
			v[i] = without(e)
		}
	}
	return v
}

func edit(b []byte, change func(any) any) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // a number of 64 bits stays what it is
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("reading the configuration of Envoy: %w", err)
	}
	out, err := json.Marshal(change(v))
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of Envoy: %w", err)
	}
	return out, nil
}

// mask masks values whose name or content says that they are secret, at any depth.
func mask(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			switch {
			case secret(k):
				v[k] = Masked
			case credentials(k, v):
				v[k] = maskValues(e)
			default:
				v[k] = mask(e)
			}
		}
	case []any:
		for i, e := range v {
			v[i] = mask(e)
		}
	case string:
		if isKey(v) {
			return Masked
		}
	}
	return v
}

// credentials tells whether a field of a message has headers that Envoy itself sends, such as to a
// receiver of spans: there people write tokens. Headers that it adds to requests of others are for
// everybody to see.
func credentials(field string, in map[string]any) bool {
	switch plain(field) {
	case "initialmetadata":
		return true
	case "requestheaderstoadd":
		for k := range in {
			if plain(k) == "httpuri" {
				return true
			}
		}
	}
	return false
}

// maskValues masks the values of headers.
func maskValues(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if _, text := e.(string); text && (plain(k) == "value" || plain(k) == "rawvalue") {
				v[k] = Masked
			} else {
				v[k] = maskValues(e)
			}
		}
	case []any:
		for i, e := range v {
			v[i] = maskValues(e)
		}
	}
	return v
}

// plain is the name of a field in both forms of JSON.
func plain(field string) string { return strings.ToLower(strings.ReplaceAll(field, "_", "")) }

// secret tells whether a field is secret, by its name in either of the forms of JSON.
func secret(field string) bool {
	switch plain(field) {
	case "backendtoken", "privatekey", "privatekeyprovider", "pkcs12", "password", "sessionticketkeys", "genericsecret", "hmacsecret", "tokensecret":
		return true
	default:
		return false
	}
}

// isKey tells whether a text is, or encodes, a private key in PEM, wherever it is.
func isKey(s string) bool {
	const pem = "PRIVATE KEY-----"
	if strings.Contains(s, pem) {
		return true
	}
	if len(s) < len(pem) {
		return false
	}
	b, err := base64.StdEncoding.DecodeString(s)
	return err == nil && bytes.Contains(b, []byte(pem))
}
