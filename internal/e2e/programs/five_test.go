package programs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
)

// Limits of the short way on the page: what a newcomer has to type and to write.
const (
	maxCommands = 5
	maxYAML     = 40
)

// fiveCommands are the files and commands of a section of docs/first-two-vms.md, for two addresses.
func fiveCommands(t *testing.T, one, two string) (files, commands []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(t), "docs", "first-two-vms.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(strings.NewReplacer("10.0.0.1", one, "10.0.0.2", two).Replace(string(b)), "\n## The same in five commands\n")
	section, _, end := strings.Cut(section, "\n## ")
	if !ok || !end {
		t.Fatal("docs/first-two-vms.md has no section of five commands")
	}
	lines := 0
	for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(section, -1) {
		files, lines = append(files, m[1]), lines+strings.Count(m[1], "\n")
	}
	for _, m := range regexp.MustCompile(`(?m)^    ([a-z].*)$`).FindAllStringSubmatch(section, -1) {
		commands = append(commands, m[1])
	}
	if len(commands) == 0 || len(commands) > maxCommands || len(files) != 2 || lines > maxYAML || strings.Contains(section, "kind: Sidecar") {
		t.Fatalf("%d commands, %d files with %d lines:\n%s", len(commands), len(files), lines, section)
	}
	t.Logf("%d commands, %d lines of YAML", len(commands), lines)
	return files, commands
}

// TestFiveCommands runs the commands of docs/first-two-vms.md on two hosts, one after the other and each once: a
// canary by mTLS. Directories and the binaries are the test's.
func TestFiveCommands(t *testing.T) {
	t.Parallel()
	l := hosttest.New(t)
	one, two := l.Host("web-1", 2), l.Host("api-1", 3)
	files, commands := fiveCommands(t, one.IP4(), two.IP4())
	l.Write("lab.yaml", files[0])
	settings := filepath.Join(two.Dir("capture"), "capture.yaml")
	if err := os.WriteFile(settings, []byte(files[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	fairlead, app := l.Binaries()
	for version, port := range map[string]int{"api-v1": 8080, "api-v2": 8081} {
		two.Start(version, hosttest.AppUser, app, "--name", version, "--listen", fmt.Sprintf(":%d", port))
	}
	tokens := one.Dir("tokens")
	for _, command := range commands {
		at := one
		line, remote := strings.CutPrefix(command, "ssh "+two.IP4()+" ")
		if remote {
			at = two
		}
		line = strings.Replace(line, "fairlead", "cd "+tokens+" && exec "+fairlead, 1)
		dirs := fmt.Sprintf(" --state-dir %s --run-dir %s", l.StateDir(at.Label), l.RunDir(at.Label))
		agent := " agent" + dirs + " --envoy " + envoytest.Binary(t)
		switch {
		case strings.Contains(line, " server "):
			line = strings.Replace(line, " server --config-dir mesh", fmt.Sprintf(" server --config-dir %s --state-dir %s --run-dir %s", l.ConfigDir, l.StateDir("server"), l.RunDir("server")), 1)
			l.Server = at.Start("server", 0, "sh", "-c", line)
			l.Server.Eventually(envoytest.Patience, func() error {
				_, err := l.CLI("host", "list", "--run-dir", l.RunDir("server"))
				return err
			})
		case strings.Contains(line, " agent "):
			at.Agent = at.Start(at.Label, 0, "sh", "-c", strings.Replace(line, " agent", agent, 1))
		case strings.Contains(line, " capture "):
			at.Exec("sh", "-c", line+fmt.Sprintf(" --capture-file %s --capture-dir %s --capture-run-dir %s", settings, two.Dir("state"), two.CaptureRunDir()))
		default:
			at.Exec("sh", "-c", line+" --run-dir "+l.RunDir("server"))
		}
	}
	l.AwaitLive("web-1", "api-1")
	ask := func(times int) (string, error) {
		return one.Run(hosttest.AppUser, "sh", "-ec", fmt.Sprintf("export http_proxy=http://127.0.0.1:15080; for i in $(seq %d); do curl -sSf --max-time 10 http://api.lab/; done", times))
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		out, err := ask(1)
		if err == nil && !strings.Contains(out, "spiffe://cluster.local/ns/lab/sa/web") {
			err = errors.New("the caller is not named: " + out)
		}
		return err
	})
	out, err := ask(100) // one in ten goes to v2; that none does has a chance of one in 37,000
	if err != nil {
		t.Fatal(err)
	}
	v1, v2 := strings.Count(out, `"api-v1"`), strings.Count(out, `"api-v2"`)
	if v1 <= v2 || v2 == 0 || v1+v2 != 100 {
		t.Errorf("a canary of one in ten: %d and %d", v1, v2)
	}
}
