package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fairlead/fairlead/registry/analysis"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

type renderFlags struct {
	configDirs       []string
	meshConfig       string
	meshNetworks     string
	workload         string
	namespace        string
	labels           []string
	serviceAccount   string
	ip               string
	proxyType        string
	interception     string
	acceptUnenforced bool
	httpProxyPort    uint32
	loopback         bool
	settings         view.Settings
	output           string
	catalog          catalogFlags
	bound            boundFlags
}

func newRender() *cobra.Command {
	var f renderFlags
	cmd := &cobra.Command{
		Use:   "render {--config-dir DIR | --consul-address ADDRESS}…",
		Short: "Show everything one proxy would get, without a server",
		Long: `Prints the configuration that the server would send to one proxy, in the JSON format of Envoy's
/config_dump. No server is needed.

Choose the proxy in one of two ways:
  --workload NAMESPACE/NAME                         a workload of the mesh
  --ip, --namespace, --labels, --service-account    a proxy that need not exist

As in the server, objects that are invalid or not in force are left out. They are reported on
standard error. With --consul-address, the catalog of Consul is read once and merged into the mesh.

Exit code 0: rendered; 1: an object was left out; 2: could not run.`,
		Example: "  fairlead render --config-dir mesh --workload shop/orders-v1\n" +
			"  fairlead render --config-dir mesh --namespace shop --labels app=web --ip 10.0.0.7 --interception REDIRECT",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return render(cmd, &f) },
	}
	f.add(cmd.Flags())
	outputFlag(cmd, &f.output)
	return cmd
}

// add adds the flags that choose a mesh and a proxy of it.
func (f *renderFlags) add(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.configDirs, "config-dir", nil, "directory of manifests; DIR=NAMESPACE,… accepts only objects of these namespaces; may be repeated")
	flags.StringVar(&f.meshConfig, "mesh-config", "", "file of Istio MeshConfig fields; empty means Istio's defaults")
	flags.StringVar(&f.meshNetworks, "mesh-networks", "", meshNetworksHelp)
	flags.StringVar(&f.workload, "workload", "", "workload of the proxy: NAMESPACE/NAME of a WorkloadEntry or Consul instance. For a Consul instance also NAMESPACE/SERVICE-ID, or NAMESPACE/SERVICE-ACCOUNT if only one instance has it")
	flags.StringVar(&f.namespace, "namespace", "default", "namespace of the proxy, if --workload is not set")
	flags.StringSliceVar(&f.labels, "labels", nil, "labels of the proxy, k=v,…, if --workload is not set")
	flags.StringVar(&f.serviceAccount, "service-account", "default", "service account of the proxy, if --workload is not set")
	flags.StringVar(&f.ip, "ip", "", "IP address of the proxy; required if --workload is not set")
	flags.StringVar(&f.proxyType, "type", "sidecar", "type of the proxy: sidecar or router")
	flags.StringVar(&f.interception, "interception", string(view.InterceptNone), "how traffic reaches the proxy: NONE, as agents have it, REDIRECT, as agents with --capture have it, or TPROXY, as in Istio")
	flags.BoolVar(&f.acceptUnenforced, "accept-unenforced", false, "allow requests to workloads that are selected by a security policy of a kind that is not in force; the default denies them")
	flags.DurationVar(&f.settings.CertificateTTL, "certificate-ttl", view.DefaultCertificateTTL, "lifetime of certificates that the server is configured with")
	flags.DurationVar(&f.settings.MaxConnectionAge, "max-connection-age", 0, "maximum age of mTLS connections between workloads that the server is configured with; 0 means half of --certificate-ttl for HTTP, and no limit for TCP")
	flags.BoolVar(&f.settings.DualStackDNS, "dual-stack-dns", false, "resolve DNS names as a server does that is configured with --dual-stack-dns")
	flags.Uint32Var(&f.httpProxyPort, "http-proxy-port", 0, "port at which the agent says that Envoy is an HTTP proxy; 0 means proxyHttpPort of MeshConfig")
	flags.BoolVar(&f.loopback, "loopback-addresses", false, "each service has a loopback address, as with an agent that is configured so")
	flags.DurationVar(&f.settings.CaptureDetectionTimeout, "capture-detection-timeout", view.DefaultCaptureDetectionTimeout, "how long a captured inbound connection waits for the client's first bytes, as the server is configured")
	flags.BoolVar(&f.settings.QUICListeners, "quic-listeners", false, "gateways listen for HTTP/3, as with a server that is configured with --quic-listeners")
	f.bound.add(flags)
	f.catalog.add(flags)
}

func render(cmd *cobra.Command, f *renderFlags) error {
	r, err := f.render(cmd)
	if err != nil {
		return err
	}
	b, err := r.dump()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), string(b)); err != nil {
		return err
	}
	if manifest.HasErrors(r.faults) {
		return errInvalid
	}
	return nil
}

// renderedProxy is the configuration of a proxy, and what it was made from.
type renderedProxy struct {
	resources []envoy.Resource
	snapshot  *mesh.Snapshot
	faults    []manifest.Fault
}

// dump is the configuration as Envoy's config_dump.
func (r *renderedProxy) dump() ([]byte, error) {
	dump, err := envoy.ConfigDump(r.resources)
	if err != nil {
		return nil, err
	}
	b, err := protojson.MarshalOptions{Multiline: true, UseProtoNames: true}.Marshal(dump)
	if err != nil {
		return nil, fmt.Errorf("encoding the config dump: %w", err)
	}
	return b, nil
}

// render makes the configuration, and prints faults and diagnostics.
func (f *renderFlags) render(cmd *cobra.Command) (*renderedProxy, error) {
	if len(f.configDirs) == 0 && f.catalog.Address == "" {
		return nil, errors.New("nothing to render: name a directory with --config-dir, or a Consul with --consul-address")
	}
	settings, faults, err := meshSettings(f.meshConfig)
	if err != nil {
		return nil, err
	}
	networks, more, err := meshNetworks(f.meshNetworks)
	if err != nil {
		return nil, err
	}
	faults = append(faults, more...)
	t, err := readSources(cmd.InOrStdin(), f.configDirs, &f.bound, &f.catalog)
	if err != nil {
		return nil, err
	}
	t.networks = networks
	if err := t.lookUpGateways(cmd); err != nil {
		return nil, err
	}
	if err := t.addConsul(cmd, &f.catalog); err != nil {
		return nil, err
	}
	faults = append(faults, t.Faults...)
	for _, o := range t.objects() {
		faults = append(faults, o.NotInForce...)
	}
	r := &renderedProxy{snapshot: t.snapshot(settings)}
	for _, c := range t.foreign(settings) {
		faults = append(faults, analysis.FaultOf(c))
	}
	r.faults = faults
	proxy, err := f.proxy(r.snapshot)
	if err != nil {
		return nil, err
	}
	for _, fault := range faults {
		if _, err := fmt.Fprintln(cmd.ErrOrStderr(), fault); err != nil {
			return nil, err
		}
	}
	r.resources, err = resourcesOf(cmd, f.settings.NewIndex(r.snapshot).Build(proxy))
	return r, err
}

// resourcesOf builds the resources of the proxy, and prints diagnostics.
func resourcesOf(cmd *cobra.Command, v *view.View) ([]envoy.Resource, error) {
	var all []envoy.Resource
	for part := range v.Parts() {
		resources, diagnostics := envoy.Build(part)
		all = append(all, resources...)
		for _, d := range diagnostics {
			if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s: warning %s: %s\n", d.Origin, d.Key, d.Message); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// proxy is the one that the flags describe.
func (f *renderFlags) proxy(s *mesh.Snapshot) (view.Proxy, error) {
	p := view.Proxy{
		Type: view.ProxyType(f.proxyType), Interception: view.Interception(strings.ToUpper(f.interception)),
		AcceptUnenforced: f.acceptUnenforced, FileSecrets: true, AccessLogService: true,
		HTTPProxyPort: f.httpProxyPort, Loopback: f.loopback,
	}
	if p.Type != view.Sidecar && p.Type != view.Router {
		return p, fmt.Errorf("--type %q: choose sidecar or router", f.proxyType)
	}
	switch p.Interception {
	case view.InterceptRedirect, view.InterceptTPROXY, view.InterceptNone:
	default:
		return p, fmt.Errorf("--interception %q: choose REDIRECT, TPROXY or NONE", f.interception)
	}
	if f.workload != "" {
		return f.workloadProxy(p, s)
	}
	addr, err := netip.ParseAddr(f.ip)
	if err != nil {
		return p, fmt.Errorf("--ip %q is no address: write the proxy's own, such as 10.0.0.7, or name a workload with --workload", f.ip)
	}
	p.Addresses = []string{addr.String()}
	p.ServiceAccount = mesh.ServiceAccount{Namespace: f.namespace, Name: f.serviceAccount}
	p.Labels = map[string]string{}
	for _, kv := range f.labels {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			return p, fmt.Errorf("--labels %q: write k=v", kv)
		}
		p.Labels[k] = v
	}
	p.ID = fmt.Sprintf("%s~%s~render.%s~%s.svc.cluster.local", p.Type, addr, f.namespace, f.namespace)
	return p, nil
}

func (f *renderFlags) workloadProxy(p view.Proxy, s *mesh.Snapshot) (view.Proxy, error) {
	ns, name, ok := strings.Cut(f.workload, "/")
	if !ok {
		return p, fmt.Errorf("--workload %q: write NAMESPACE/NAME", f.workload)
	}
	w, err := findWorkload(s.WorkloadsIn(ns), name)
	if err != nil {
		return p, fmt.Errorf("--workload %q: %w", f.workload, err)
	}
	of := proxyOf(s, w, p.Type, p.Interception)
	of.AcceptUnenforced, of.FileSecrets, of.AccessLogService = p.AcceptUnenforced, p.FileSecrets, p.AccessLogService
	of.HTTPProxyPort, of.Loopback = p.HTTPProxyPort, p.Loopback
	return of, nil
}

// findWorkload finds a workload by its name, or where only one has them by the
// last parts of it, as of an instance of a catalog, or by its service account.
func findWorkload(all []*mesh.Workload, name string) (*mesh.Workload, error) {
	var names []string
	var ends, runAs []*mesh.Workload
	for _, w := range all {
		if w.Name == name {
			return w, nil
		}
		names = append(names, w.Name)
		if strings.HasSuffix(w.Name, "/"+name) {
			ends = append(ends, w)
		}
		if w.ServiceAccount == name {
			runAs = append(runAs, w)
		}
	}
	if len(ends) == 0 {
		ends = runAs
	}
	switch len(ends) {
	case 0:
		if hint := didYouMean(name, names); hint != "" || len(names) == 0 {
			return nil, fmt.Errorf("the mesh has no such workload in that namespace%s", hint)
		}
		return nil, fmt.Errorf("the mesh has no such workload in that namespace, which has %s", someOf(names))
	case 1:
		return ends[0], nil
	}
	names = names[:0]
	for _, w := range ends {
		names = append(names, w.Name)
	}
	return nil, fmt.Errorf("that are several, name one of them: %s", someOf(names))
}

// someOf are the first few of some names.
func someOf(names []string) string {
	const most = 3
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
