package pages

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// unit matches the start of a unit.
var unit = regexp.MustCompile(`^(?:ssh (\S+) )?systemctl start (\S+)$`)

// startUnit starts what a unit starts, with its user and directories, in the place of systemd: there is none
// in a namespace. What else the unit says, such as what it forbids, a test of package systemd looks at.
func (l *twoHosts) startUnit(command string) {
	l.t.Helper()
	m := unit.FindStringSubmatch(command)
	at, name := l.hosts["10.0.0.1"], m[2]
	if m[1] != "" {
		at = l.hosts[m[1]]
	}
	b, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(l.t), "systemd", name+".service"))
	if err != nil {
		l.t.Fatal(err)
	}
	key := func(k string) string {
		v := regexp.MustCompile(`(?m)^` + k + `=(.*)$`).FindSubmatch(b)
		if v == nil {
			l.t.Fatalf("%s has no %s", name, k)
		}
		return string(v[1])
	}
	user, state, run := key("User"), "/var/lib/"+key("StateDirectory"), "/run/"+key("RuntimeDirectory")
	if out, err := at.shell("mkdir -p " + state + " " + run + " && chmod 0700 " + state + " && chown " + user + " " + state + " " + run); err != nil {
		l.t.Fatal(err, out)
	}
	line := strings.NewReplacer("/usr/bin/", "", "${STATE_DIRECTORY}", state, "${RUNTIME_DIRECTORY}", run).Replace(key("ExecStart"))
	p := at.terminal(at.name+" "+name, "setpriv --reuid "+user+" --regid "+user+" --clear-groups "+line)
	if name == "fairlead-server" {
		l.Server = p
		p.Eventually(envoytest.Patience, func() error {
			_, err := at.shell("fairlead host list")
			return err
		})
	}
}

// addUsers makes the users of the units, as systemd-sysusers does, and those of programs.
func (h *host) addUsers(names ...string) {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(h.t), "systemd", "fairlead.sysusers"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^u\s+(\S+)`).FindAllStringSubmatch(string(b), -1) {
		names = append(names, m[1])
	}
	for _, name := range names {
		if out, err := h.shell("useradd --system --no-create-home " + name); err != nil {
			h.t.Fatal(err, out)
		}
	}
}
