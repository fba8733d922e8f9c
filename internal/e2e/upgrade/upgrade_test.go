package upgrade

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

// The addresses are those of the record: they stand in certificates' records and
// in the configuration that Envoy accepted.
const (
	xdsAddress  = "127.250.7.1:15012"
	httpAddress = "127.250.7.1:15014"
	entry       = "http://127.250.7.11:8080/"
	webIdentity = "spiffe://cluster.local/ns/shop/sa/web"
)

// hosts are the two of the record, with the settings that each agent has.
func hosts() map[string][]string {
	return map[string][]string{
		"web":  {"--address", "127.250.7.11", "--probe-tcp", "28080"},
		"echo": {"--address", "127.250.7.12", "--probe-tcp", "28081"},
	}
}

// recorded are the directories of the record that hold state.
func recorded() []string { return []string{"server", "web", "echo"} }

// site is the recorded mesh, on a copy of its disks.
type site struct {
	*meshtest.Mesh
	t        *testing.T
	client   *meshtest.Client
	fairlead string
	agents   []*meshtest.Process
}

func newSite(t *testing.T) *site {
	t.Helper()
	envoytest.Binary(t)
	m := meshtest.New(t, "", nil)
	fairlead, app := m.Binaries()
	s := &site{Mesh: m, t: t, client: meshtest.NewClient(t, ""), fairlead: fairlead}
	for _, name := range recorded() {
		if err := os.CopyFS(m.StateDir(name), os.DirFS(filepath.Join("testdata", name))); err != nil {
			t.Fatal(err)
		}
		ownFiles(t, m.StateDir(name))
	}
	if err := os.CopyFS(m.ConfigDir, os.DirFS("testdata/mesh")); err != nil {
		t.Fatal(err)
	}
	m.Start("web-app", app, "--name", "web", "--listen", "127.0.0.1:28080", "--next", "http://127.250.7.11:9080", "--next-host", "echo.shop.internal")
	m.Start("echo-app", app, "--name", "echo", "--listen", "127.0.0.1:28081")
	return s
}

// ownFiles lets nobody else read the files of a state directory. Git does not keep it, and a key is refused that
// others can read.
func ownFiles(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			err = os.Chmod(path, 0o600)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (s *site) startServer(fairlead string) {
	s.t.Helper()
	s.Server = s.Start("server", fairlead, "server", "--config-dir", s.ConfigDir, "--state-dir", s.StateDir("server"),
		"--run-dir", s.RunDir("server"), "--xds-address", xdsAddress, "--http-address", httpAddress)
}

// startAgents starts both agents, which have neither a token nor the address of
// a server but what is on their disks.
func (s *site) startAgents(fairlead string) {
	s.t.Helper()
	s.agents = nil
	for name, settings := range hosts() {
		argv := append([]string{
			fairlead, "agent", "--envoy", envoytest.Binary(s.t), "--state-dir", s.StateDir(name),
			"--run-dir", s.RunDir(name), "--drain-time", "1s",
		}, settings...)
		s.agents = append(s.agents, s.Start(name, argv...))
	}
}

// answers waits until a request goes all the way by mTLS.
func (s *site) answers() {
	s.t.Helper()
	s.client.AwaitAnswers(s.t, entry, "web", "echo")
	a, err := s.client.Get(s.t.Context(), entry)
	if err != nil || a.Next == nil || a.Next.Caller != webIdentity {
		s.t.Fatalf("echo should have been called by %s: %+v, %v", webIdentity, a, err)
	}
}

// known waits until both hosts stream, each under its record.
func (s *site) known() {
	s.t.Helper()
	s.AwaitLive(slices.Collect(maps.Keys(hosts()))...)
	list, err := s.CLI("host", "list", "--run-dir", s.RunDir("server"))
	if err != nil || strings.Contains(list, "REFUSED") {
		s.t.Fatalf("host list: %v\n%s", err, list)
	}
	for name := range hosts() {
		if !strings.Contains(list, "\n"+name+" ") {
			s.t.Errorf("%s is not on record:\n%s", name, list)
		}
	}
}

func (s *site) stop() {
	for _, a := range s.agents {
		a.Stop()
	}
	if s.Server != nil {
		s.Server.Stop()
	}
}

// TestStateOfTheReleaseBefore starts on the disks that the release before left:
// the agents first, with the control plane away, then the server. Then it looks
// at what today's release leaves.
func TestStateOfTheReleaseBefore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.startAgents(s.fairlead)
	s.answers()
	load := s.client.StartLoad(t, entry, 50)
	s.startServer(s.fairlead)
	s.known()
	load.Wait(t, 50)
	if r := load.Stop(); r.Failed != 0 {
		t.Errorf("requests failed when the server came: %+v", r)
	}
	s.stop()
	for _, name := range recorded() {
		s.readable(name)
	}
	previous := os.Getenv("FAIRLEAD_PREVIOUS")
	if previous == "" {
		return // testdata/README.md says how to go back
	}
	s.startAgents(previous)
	s.answers()
	s.startServer(previous)
	s.known()
	s.answers()
	// Servers are upgraded before agents.
	s.Server.Stop()
	s.startServer(s.fairlead)
	s.known()
	s.Write("deny.yaml", "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: deny, namespace: shop}\nspec: {selector: {matchLabels: {app: echo}}}\n")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if _, err := s.client.Get(t.Context(), entry); err == nil || !strings.Contains(err.Error(), "403") {
			return fmt.Errorf("a policy is not in force on hosts with the agent of the release before: %w", err)
		}
		return nil
	})
	s.Write("deny.yaml", "# none\n")
	s.answers()
}

// readable compares the files that the release before knows with what it wrote
// itself. It decodes strictly: a key that it did not write, it refuses. Files
// that it does not know, it does not open.
func (s *site) readable(name string) {
	s.t.Helper()
	root := filepath.Join("testdata", name)
	compared := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		before, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		after, err := os.ReadFile(filepath.Join(s.StateDir(name), rel))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		compared++
		if err := sameForm(before, after); err != nil {
			s.t.Errorf("%s of %s: %v", rel, name, err)
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if compared == 0 {
		s.t.Errorf("nothing that %s had is left", name)
	}
}

// sameForm says what of a file the release that wrote the former one would
// refuse.
func sameForm(before, after []byte) error {
	var was, is any
	if json.Unmarshal(before, &was) != nil {
		// A text with a head, or a form of our own with its name and number in front.
		if b, a := head(before), head(after); b != a {
			return fmt.Errorf("began with %q, begins with %q", b, a)
		}
		return nil
	}
	if err := json.Unmarshal(after, &is); err != nil {
		return err
	}
	known := map[string]bool{}
	keys("", was, known)
	now := map[string]bool{}
	keys("", is, now)
	for k := range now {
		if !known[k] {
			return fmt.Errorf("has the new key %q: keep it in a file of its own", k)
		}
	}
	return nil
}

// head is the text that a file begins with, and the byte behind it, which is the
// form's number where that is no digit.
func head(b []byte) string {
	end := slices.IndexFunc(b, func(c byte) bool { return c < ' ' || c > '~' })
	line := string(b[:min(end+1, len(b))])
	if strings.HasPrefix(line, "sha256:") {
		return "sha256:"
	}
	return line
}

// keys collects the paths of all keys; the elements of a list share theirs.
func keys(at string, v any, into map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			into[at+"."+k] = true
			keys(at+"."+k, e, into)
		}
	case []any:
		for _, e := range v {
			keys(at+"[]", e, into)
		}
	}
}

// TestSameForm shows what the comparison notices.
func TestSameForm(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, after string
		refused       bool
	}{
		"values":  {`{"a":[{"b":1}]}`, `{"a":[{"b":2},{"b":3}]}`, false},
		"fewer":   {`{"a":1,"b":2}`, `{"a":1}`, false},
		"more":    {`{"a":[{"b":1}]}`, `{"a":[{"b":1,"c":2}]}`, true},
		"head":    {"fairlead relay 2\nabc", "fairlead relay 2\ndef", false},
		"form":    {"SEALED\x01\xfa", "SEALED\x02\xfa", true},
		"no_json": {`{"a":1}`, "a: 1", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := sameForm([]byte(c.before), []byte(c.after)); (err != nil) != c.refused {
				t.Errorf("%v", err)
			}
		})
	}
}
