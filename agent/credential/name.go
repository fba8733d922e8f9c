package credential

import (
	"errors"
	"fmt"
	"strings"
)

// Names of secrets, as in istiod: kubernetes://NAME is a certificate with its key,
// kubernetes://NAME-cacert the authorities that verify the other side, with their list of
// revoked certificates.
const (
	Prefix   = "kubernetes://"
	CASuffix = "-cacert"
)

// maxName bounds the name of a credential, as Kubernetes bounds that of a Secret.
const maxName = 253

// maxSecret bounds the names of secrets that are looked at.
const maxSecret = 512

// IsSecret reports whether a secret is a credential of this host.
func IsSecret(secret string) bool {
	return strings.HasPrefix(secret, Prefix) && len(secret) <= maxSecret
}

// Name is the name of the credential of a secret, and whether the secret is that of authorities.
// The name is not checked.
func Name(secret string) (name string, authorities bool) {
	name = strings.TrimPrefix(secret, Prefix)
	return name, strings.HasSuffix(name, CASuffix)
}

// base is the name of a credential without the suffix of its authorities.
func base(secret string) string {
	return strings.TrimSuffix(strings.TrimPrefix(secret, Prefix), CASuffix)
}

// CheckName reports why a name cannot be that of a folder.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case len(name) > maxName:
		return fmt.Errorf("the name has %d bytes, at most %d are allowed", len(name), maxName)
	case strings.Contains(name, "/"):
		return errors.New("the name has a /; a credential is a folder of the host's own directory, without a namespace")
	case strings.HasPrefix(name, "."), strings.Contains(name, ".."):
		return errors.New("the name begins with a dot, or has two in a row")
	}
	for _, r := range name {
		letter, digit := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z', r >= '0' && r <= '9'
		if !letter && !digit && !strings.ContainsRune("-._", r) {
			return fmt.Errorf("the name has %q; letters, digits and the characters - . _ are allowed", r)
		}
	}
	return nil
}
