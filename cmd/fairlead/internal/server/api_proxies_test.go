package server

import (
	"net/http"
	"strings"
	"testing"
)

func TestProxyConfigOfAnUnknownType(t *testing.T) {
	t.Parallel()
	r := start(t, config(t, t.TempDir()))
	err := r.client.Do(t.Context(), http.MethodGet, "/v1/config/web?type=clusters", nil, nil)
	if err == nil || !strings.Contains(err.Error(), `there is no type "clusters": choose cluster, endpoint, listener, route, virtual-host or all`) {
		t.Errorf("%v", err)
	}
}
