package main

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/textproto"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/authzcheck"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/proxyconfig"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/authz"
)

func newAuthz() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "authz",
		Short:   "See who may send a workload which requests",
		Long:    `Asks the AuthorizationPolicies of a workload about requests, without sending any.`,
		Example: "  fairlead authz check orders-1 GET /stock --from cluster.local/ns/shop/sa/web",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAuthzCheck())
	return cmd
}

type authzFlags struct {
	mesh          renderFlags // of --config-dir
	port          uint32
	from, host    string
	claims, token string
	headers       []string
	hostRun, file string
	output        string
}

func newAuthzCheck() *cobra.Command {
	var f authzFlags
	cmd := &cobra.Command{
		Use:   "check [PROXY] [METHOD PATH]",
		Short: "Say whether a request is allowed, and which rule decides",
		Long: `Says whether the Envoy of a workload lets a request through to the application, and which rule of
which AuthorizationPolicy decides that. Without METHOD and PATH it asks about a connection of TCP.

Choose what is judged in one of four ways:
  PROXY                                what the server has sent: a host, NAME.NAMESPACE or a node id
  --agent-run-dir DIR                  on the proxy's host: what its Envoy runs
  -f FILE                              a config_dump of Envoy; - is standard input
  --config-dir DIR --workload NS/NAME  manifests; no server is needed

Exit code 0: allowed; 1: denied; 2: could not say.`,
		Example: "  fairlead authz check orders-1 GET /stock --from spiffe://cluster.local/ns/shop/sa/web\n" +
			"  fairlead authz check --config-dir mesh --workload shop/orders-1 DELETE /stock --from cluster.local/ns/shop/sa/web -H 'x-team: a'\n" +
			"  fairlead authz check --agent-run-dir /run/fairlead-agent --port 9000 --from 10.0.0.7",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 3 {
				return fmt.Errorf("unexpected argument %q: write [PROXY] [METHOD PATH]", args[3])
			}
			return nil
		},
	}
	flags := cmd.Flags()
	ask := adminFlag(cmd)
	f.mesh.add(flags)
	flags.Uint32Var(&f.port, "port", 0, "port of the application's proxy at which the request arrives; not needed if there is only one")
	flags.StringVar(&f.from, "from", "", "the client: its identity (spiffe://TD/ns/NS/sa/SA, or without spiffe://), or an IP address, or both: ID,IP. Without an identity the client has no mTLS")
	flags.StringVar(&f.host, "host", "", "host of the request")
	flags.StringArrayVarP(&f.headers, "header", "H", nil, "header of the request, as 'name: value'; may be repeated")
	flags.StringVar(&f.claims, "claims", "", "file with the claims of the request's token, as JSON")
	flags.StringVar(&f.token, "jwt", "", "file with the token (JWT) of the request. Its issuer and audience are checked, its signature and times are not")
	flags.StringVar(&f.hostRun, "agent-run-dir", "", "runtime directory of an agent on this machine, whose Envoy is asked")
	flags.StringVarP(&f.file, "file", "f", "", "read a config_dump of Envoy; - is standard input")
	outputFlag(cmd, &f.output)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return f.run(cmd, args, ask()) }
	return cmd
}

func (f *authzFlags) run(cmd *cobra.Command, args []string, client *admin.Client) error {
	proxy := ""
	if f.file == "" && f.hostRun == "" && len(f.mesh.configDirs) == 0 {
		if len(args) == 0 || len(args) == 2 {
			return errors.New("say what is judged: PROXY, --agent-run-dir, -f or --config-dir; see fairlead authz check --help")
		}
		proxy, args = args[0], args[1:]
	}
	q, err := f.question(args)
	if err != nil {
		return err
	}
	entries, snapshot, err := f.entries(cmd, client, proxy)
	if err != nil {
		return err
	}
	var c authzcheck.Configuration
	if c.Listeners, c.Extensions, err = proxyconfig.Listeners(entries); err != nil {
		return err
	}
	q.Offline = snapshot != nil
	answer, err := authzcheck.Ask(c, q)
	if err != nil {
		return err
	}
	return f.print(cmd, answer, snapshot)
}

// entries are the configuration of the proxy. The snapshot is nil if it is not of manifests.
func (f *authzFlags) entries(cmd *cobra.Command, client *admin.Client, proxy string) ([]proxyconfig.Entry, *mesh.Snapshot, error) {
	chosen := 0
	for _, is := range []bool{f.file != "", f.hostRun != "", len(f.mesh.configDirs) > 0, proxy != ""} {
		if is {
			chosen++
		}
	}
	if chosen > 1 {
		return nil, nil, errors.New("PROXY, --agent-run-dir, -f and --config-dir exclude each other: choose one")
	}
	listeners, err := proxyconfig.Find(proxyconfig.Listener)
	if err != nil {
		return nil, nil, err
	}
	extensions, err := proxyconfig.Find(proxyconfig.Extension)
	if err != nil {
		return nil, nil, err
	}
	var entries []proxyconfig.Entry
	switch {
	case f.hostRun != "":
		entries, err = askAgent(cmd.Context(), admin.NewClient(f.hostRun+"/admin.sock"), &listeners)
	case f.file != "":
		entries, err = readDump(cmd.InOrStdin(), f.file, &listeners)
	case proxy != "":
		if entries, err = askServer(cmd.Context(), client, proxy, &listeners); err != nil {
			return nil, nil, err
		}
		more, err := askServer(cmd.Context(), client, proxy, &extensions)
		return append(entries, more...), nil, err
	default:
		r, err := f.mesh.render(cmd)
		if err != nil {
			return nil, nil, err
		}
		dump, err := r.dump()
		if err != nil {
			return nil, nil, err
		}
		entries, err := proxyconfig.Read(dump)
		return entries, r.snapshot, err
	}
	return entries, nil, err
}

// question reads the arguments and flags about the request.
func (f *authzFlags) question(args []string) (authzcheck.Question, error) {
	q := authzcheck.Question{Port: f.port, Authority: f.host, Headers: map[string][]string{}}
	switch len(args) {
	case 0:
	case 2:
		q.Method, q.Path = args[0], args[1]
	default:
		return q, fmt.Errorf("%q: write METHOD and PATH, as in GET /", strings.Join(args, " "))
	}
	for part := range strings.SplitSeq(f.from, ",") {
		switch a, err := netip.ParseAddr(part); {
		case part == "":
		case err == nil:
			q.Address = a
		case strings.Contains(part, "/"):
			q.From = "spiffe://" + strings.TrimPrefix(part, "spiffe://")
		default:
			return q, fmt.Errorf("--from %q is neither an identity such as cluster.local/ns/shop/sa/web nor an IP address", part)
		}
	}
	for _, h := range f.headers {
		name, value, ok := strings.Cut(h, ":")
		if name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)); !ok || name == "" {
			return q, fmt.Errorf("-H %q: write 'name: value'", h)
		}
		q.Headers[name] = append(q.Headers[name], strings.TrimSpace(value))
	}
	var err error
	q.Claims, err = f.readClaims()
	return q, err
}

// readClaims are those of the request's token; nil if it has none.
func (f *authzFlags) readClaims() (*structpb.Struct, error) {
	path := cmp.Or(f.claims, f.token)
	switch {
	case path == "":
		return nil, nil //nolint:nilnil // a request without a token
	case f.claims != "" && f.token != "":
		return nil, errors.New("--claims and --jwt exclude each other: choose one")
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if f.token != "" {
		parts := strings.Split(strings.TrimSpace(string(raw)), ".")
		if len(parts) != 3 {
			return nil, fmt.Errorf("reading %s: it is no token: three parts with dots between them", path)
		}
		if raw, err = base64.RawURLEncoding.DecodeString(parts[1]); err != nil {
			return nil, fmt.Errorf("reading %s: the second part of the token is not base64url", path)
		}
	}
	out := &structpb.Struct{}
	if err := protojson.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("reading %s: the claims are no JSON object: %w", path, err)
	}
	return out, nil
}

// decision is the answer for scripts.
type decision struct {
	Allowed bool     `json:"allowed"`
	Reason  string   `json:"reason"`
	Policy  string   `json:"policy,omitempty"`
	Rule    *int     `json:"rule,omitempty"` // counts from 0
	Origin  string   `json:"origin,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

func (f *authzFlags) print(cmd *cobra.Command, a authzcheck.Answer, s *mesh.Snapshot) error {
	d := decision{Allowed: a.Allowed, Reason: a.Reason, Notes: a.Notes}
	if namespace, name, rule, ok := authz.ParseRuleName(a.Policy); ok {
		d.Policy, d.Rule = namespace+"/"+name, &rule
		d.Origin = originOf(s, namespace, name)
	}
	w := cmd.OutOrStdout()
	if f.output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		if err := e.Encode(d); err != nil {
			return err
		}
	} else {
		text := map[bool]string{true: "allowed", false: "denied"}[d.Allowed] + ": " + d.Reason
		if d.Policy != "" {
			text += fmt.Sprintf(": AuthorizationPolicy %s, rules[%d]", d.Policy, *d.Rule)
		}
		if d.Origin != "" {
			text += " (" + d.Origin + ")"
		}
		if _, err := fmt.Fprintln(w, strings.Join(append([]string{text}, d.Notes...), "\nnote: ")); err != nil {
			return err
		}
	}
	if !d.Allowed {
		return errInvalid
	}
	return nil
}

// originOf is where a policy is written; empty if that is not known.
func originOf(s *mesh.Snapshot, namespace, name string) string {
	if s == nil {
		return ""
	}
	for _, p := range s.AuthorizationPolicies {
		if p.Namespace == namespace && p.Name == name {
			return p.Origin.String()
		}
	}
	return ""
}
