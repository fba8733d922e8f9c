package envoytest

import (
	"strings"
	"testing"
)

func TestStart(t *testing.T) {
	t.Parallel()
	for _, v := range Versions() {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			e := Start(t, Config{Version: v, Bootstrap: []byte(`{"admin":` + AdminJSON + `}`)})
			if got := e.Admin(t, "/server_info"); !strings.Contains(got, v) {
				t.Errorf("server_info does not name %s: %s", v, got)
			}
			if got := e.Stat(t, "server.live"); got != 1 {
				t.Errorf("server.live = %d", got)
			}
			e.NoRejections(t)
		})
	}
}

func TestValidateRefuses(t *testing.T) {
	t.Parallel()
	if err := Validate(t, []byte(`{"admin":{"no_such_field":1}}`)); err == nil {
		t.Error("a unknown field was accepted")
	}
}
