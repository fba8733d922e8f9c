package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/proxyconfig"
)

func TestProxyConfigOfAnUnknownType(t *testing.T) {
	t.Parallel()
	r := start(t, config(t, t.TempDir()))
	ask := func(name string) string {
		err := r.client.Do(t.Context(), http.MethodGet, "/v1/config/web?type="+name, nil, nil)
		if err == nil {
			return ""
		}
		return err.Error()
	}
	unknown := ask("clutser")
	for _, typ := range proxyconfig.Types() {
		if !strings.Contains(unknown, typ.Name) {
			t.Errorf("the error does not name %s: %s", typ.Name, unknown)
		}
		for _, name := range append([]string{typ.Name}, typ.Aliases...) {
			said := ask(name)
			if said == "" || typ.Server == strings.Contains(said, "--agent-run-dir") {
				t.Errorf("%s: %s", name, said)
			}
		}
	}
}
