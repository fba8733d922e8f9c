package bootstrap_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/xds/bootstrap"
)

// TestReportsOfCredentials: a report survives the way, is bounded, and has first what needs a
// person.
func TestReportsOfCredentials(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var list []bootstrap.Credential
	for i := range 1000 {
		list = append(list, bootstrap.Credential{Name: fmt.Sprintf("c%d", i), State: bootstrap.CredentialReady, Served: true, NotAfter: now.Add(time.Duration(1000-i) * time.Hour)})
	}
	list[500].State, list[500].Reason = "missing", strings.Repeat("é", 1000)+"\x00\x1b[31m"
	r := bootstrap.ReportCredentials(list)
	if r.Total != 1000 || r.NotReady != 1 || r.List[0].Name != "c500" || r.List[1].Name != "c999" {
		t.Errorf("got %+v", r)
	}
	text, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := bootstrap.ParseCredentials(text)
	if err != nil || !got.Equal(&r) {
		t.Errorf("got %+v, %v", got, err)
	}
	if other := bootstrap.ReportCredentials(list[1:]); other.Equal(&r) {
		t.Error("another report is equal")
	}
	for what, text := range map[string]string{
		"long":   `{"total":1,"list":[{"name":"` + strings.Repeat("a", 40<<10) + `"}]}`,
		"many":   `{"total":100,"list":[` + strings.Repeat(`{},`, 40) + `{}]}`,
		"wrong":  `{"total":1,"not_ready":2}`,
		"no":     `live`,
		"signed": `{"total":-1}`,
	} {
		if got, err := bootstrap.ParseCredentials(text); err == nil {
			t.Errorf("%s: got %+v", what, got)
		}
	}
	got, err = bootstrap.ParseCredentials(`{"total":1,"list":[{"name":"a\u001b[31m\nb","state":"` + strings.Repeat("x", 99) + `"}]}`)
	if err != nil || got.List[0].Name != "a[31mb" || len(got.List[0].State) != 16 {
		t.Errorf("got %+v, %v", got, err)
	}
}
