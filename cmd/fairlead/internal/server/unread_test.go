package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/files"
)

// TestUnreadableTenantHoldsNoReadiness: a server without state that cannot read a tenant's directory is
// ready without it, removes nothing from hosts, and says what is wrong; one of a source that is bound to
// no namespace holds readiness.
func TestUnreadableTenantHoldsNoReadiness(t *testing.T) {
	t.Parallel()
	for name, namespaces := range map[string][]string{"bound": {"evil"}, "unbound": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, treeOf(t, map[string]string{"a.yaml": entry("")}))
			unread := filepath.Join(t.TempDir(), "unread")
			cfg.Roots = append(cfg.Roots, files.Root{Path: unread, Namespaces: namespaces})
			r := start(t, cfg)
			r.eventually(func() error {
				if s := r.registry.Snapshot(); s == nil || len(s.Workloads) != 1 {
					return fmt.Errorf("not published: %+v", r.registry.Status())
				}
				return nil
			})
			if !r.registry.Snapshot().Incomplete {
				t.Error("hosts would lose what the directory has")
			}
			why := r.NotReady()
			if (len(why) == 0) != (namespaces != nil) {
				t.Errorf("not ready: %v", why)
			}
			p, s := r.proxiesNow(time.Now()), r.sources()
			named := false
			for _, c := range Conditions(&p, &s, time.Now()) {
				named = named || c.Reason == "source-unavailable" && strings.Contains(c.Text, unread)
			}
			if !named {
				t.Errorf("no condition names it: %+v", Conditions(&p, &s, time.Now()))
			}
			if err := os.Mkdir(unread, 0o700); err != nil {
				t.Fatal(err)
			}
			r.eventually(func() error {
				if r.registry.Snapshot().Incomplete || len(r.NotReady()) > 0 {
					return fmt.Errorf("incomplete: %v", r.NotReady())
				}
				return nil
			})
		})
	}
}
