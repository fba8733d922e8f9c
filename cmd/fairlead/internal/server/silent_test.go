package server

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestSilentHostHoldsNoResult: the result of a change is there although a host never answers what it
// was sent; the result names that host.
func TestSilentHostHoldsNoResult(t *testing.T) {
	t.Parallel()
	service := func(host string) string {
		return "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: api, namespace: shop}\n" +
			"spec: {hosts: [" + host + "], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.0.0.9}]}\n"
	}
	dir := treeOf(t, map[string]string{"a.yaml": entry(""), "b.yaml": service("one.lab")})
	r := start(t, config(t, dir))
	if _, _, err := r.joined("mute", "127.0.9.1", nil).claim("one"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "b.yaml")
	put(t, path, service("two.lab"))
	var got Rollout
	r.eventually(func() error {
		got = Rollout{}
		if err := r.client.Do(t.Context(), http.MethodGet, "/v1/rollout/"+strings.TrimPrefix(path, "/"), nil, &got); err != nil {
			return err
		}
		if got.Touched == 0 || !got.Done {
			return fmt.Errorf("no result: %+v", got)
		}
		return nil
	})
	if got.Waiting != 1 || len(got.Unanswered) != 1 || got.Unanswered[0].Host != "mute" || got.Unanswered[0].Proxy != "one.shop" || !got.Unanswered[0].Silent {
		t.Errorf("the host is not named: %+v", got)
	}
}
