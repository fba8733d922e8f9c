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
			if secret(k) {
				v[k] = Masked
			} else {
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

// secret tells whether a field is secret, by its name in either of the forms of JSON.
func secret(field string) bool {
	switch strings.ToLower(strings.ReplaceAll(field, "_", "")) {
	case "privatekey", "privatekeyprovider", "pkcs12", "password", "sessionticketkeys", "genericsecret", "hmacsecret", "tokensecret":
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
