package server

import (
	"net/http"
	"testing"
	"time"
)

// TestTokensAreListed: unused, used and revoked ones, by the id that their maker was given.
func TestTokensAreListed(t *testing.T) {
	t.Parallel()
	r := start(t, config(t, t.TempDir()))
	r.join("used", "shop/web")
	var made Token
	in := TokenRequest{Host: "unused", Workloads: []string{"shop/web", "shop/cart"}, TTL: 2 * time.Hour, Addresses: []string{"10.0.0.1"}, Type: "router"}
	if err := r.client.Do(t.Context(), http.MethodPost, "/v1/tokens", in, &made); err != nil {
		t.Fatal(err)
	}
	list := func() map[string]TokenStatus {
		var tokens []TokenStatus
		if err := r.client.Do(t.Context(), http.MethodGet, "/v1/tokens", nil, &tokens); err != nil {
			t.Fatal(err)
		}
		out := map[string]TokenStatus{}
		for _, x := range tokens {
			out[x.Host] = x
		}
		return out
	}
	tokens := list()
	if got := tokens["used"]; got.State != "used" || time.Since(got.Used) > time.Minute || len(got.Workloads) != 1 {
		t.Errorf("the token of a host that joined: %+v", got)
	}
	got := tokens["unused"]
	if got.State != "unused" || !got.Used.IsZero() || !got.Expires.Equal(made.Expires) || got.ID != made.ID || got.ID == "" ||
		got.Type != "router" || len(got.Workloads) != 2 || len(got.Addresses) != 1 || got.Fault != "" {
		t.Errorf("a token that waits: %+v; made %s until %s", got, made.ID, made.Expires)
	}
	if err := r.client.Do(t.Context(), http.MethodDelete, "/v1/tokens/"+made.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	if tokens = list(); len(tokens) != 1 || tokens["used"].ID == "" {
		t.Errorf("after revoking one of two: %+v", tokens)
	}
}
