package envoy

import "testing"

func TestNamesOfCredentials(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][2]string{
		"shop":                        {"kubernetes://shop", "kubernetes://shop-cacert"},
		"kubernetes://shop":           {"kubernetes://shop", "kubernetes://shop-cacert"},
		"builtin://":                  {"default", "ROOTCA"},
		"invalid://shop":              {"invalid://", "invalid://"},
		"kubernetes-gateway://a/shop": {"kubernetes-gateway://a/shop", "kubernetes-gateway://a/shop-cacert"},
	} {
		if got := [2]string{CredentialSecret(name), CredentialRoots(name)}; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if s := credentialSecret("x"); s.GetSdsConfig().GetInitialFetchTimeout().AsDuration() != credentialWait {
		t.Errorf("waits for %v", s.GetSdsConfig().GetInitialFetchTimeout())
	}
}
