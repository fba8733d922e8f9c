package view

import (
	"testing"
	"time"
)

// TestConnectionAges has what the flags say of how long connections live.
func TestConnectionAges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings          Settings
		http, tcp, client time.Duration
	}{
		"default":   {Settings{}, 12 * time.Hour, 0, 10*time.Hour + 48*time.Minute},
		"short_ttl": {Settings{CertificateTTL: 10 * time.Second}, 5 * time.Second, 0, 4500 * time.Millisecond},
		"set":       {Settings{CertificateTTL: time.Hour, MaxConnectionAge: 10 * time.Minute}, 10 * time.Minute, 10 * time.Minute, 9 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := c.settings
			if got := s.serverAge(true); got != c.http {
				t.Errorf("HTTP: %s, want %s", got, c.http)
			}
			if got := s.serverAge(false); got != c.tcp {
				t.Errorf("TCP: %s, want %s", got, c.tcp)
			}
			if got := s.clientAge("HTTP"); got != c.client {
				t.Errorf("HTTP client: %s, want %s", got, c.client)
			}
			if got := s.clientAge("TCP"); got != 0 {
				t.Errorf("TCP client: %s", got)
			}
		})
	}
}

// TestSettingsChangeHashes: settings are part of the content of parts.
func TestSettingsChangeHashes(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("shop", "a.mesh", 80)
	s, p := w.snapshot(), proxyIn("shop", nil)
	usual := NewIndex(s).Build(p).Hash()
	for name, c := range map[string]struct {
		settings Settings
		same     bool
	}{
		"spelled_out": {Settings{CertificateTTL: DefaultCertificateTTL}, true},
		"short_ttl":   {Settings{CertificateTTL: time.Hour}, false},
		"age":         {Settings{MaxConnectionAge: time.Minute}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := c.settings.NewIndex(s)
			if got := x.Build(p).Hash(); (got == usual) != c.same {
				t.Errorf("the view has its usual hash: %v, want %v", got == usual, c.same)
			}
			again := c.settings.NewIndex(s).Build(p).Hash()
			if next := x.Next(s).Build(p).Hash(); next != again {
				t.Error("the next index has other settings")
			}
		})
	}
}
