package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/hashicorp/consul/api"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry/consul/intentions"
	"github.com/fairlead/fairlead/registry/manifest"
)

func newConsul() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "consul",
		Short: "Move from Consul's service mesh: intentions as AuthorizationPolicies",
		Long:  `Commands for moving from Consul's own service mesh.`,
	}
	cmd.AddCommand(newConsulIntentions())
	return cmd
}

// intentionsFile is the file that is written: one, so that no policy of an earlier run stays.
const intentionsFile = "consul-intentions.yaml"

// intentionFlags are the flags of consul intentions.
type intentionFlags struct {
	catalog                               catalogFlags
	trustDomain, defaultPolicy, outputDir string
}

func newConsulIntentions() *cobra.Command {
	var f intentionFlags
	cmd := &cobra.Command{
		Use:   "intentions --consul-address ADDRESS",
		Short: "Write AuthorizationPolicies that decide as Consul's intentions do",
		Long: `Reads all intentions of Consul (config entries of kind service-intentions) and the names of all
services, and writes AuthorizationPolicies to standard output, or to the file ` + intentionsFile + ` of
--output-dir, by atomic rename.

Standard error has a line for everything without a counterpart, such as expressions, tokens (JWT),
peers and sameness groups. It denies: the policies never allow more than Consul does.

Each mesh namespace with services of Consul gets a policy that denies what no other policy allows,
to all workloads there. Services that are registered later are denied until you run the command again.

The flags that say how services look in the mesh must be those of the server.

The token needs service_prefix "" { policy = "read", intentions = "read" } and
node_prefix "" { policy = "read" }.

Exit code 0: everything is in the policies; 1: the policies are written, and deny what has no
counterpart; 2: could not run.`,
		Example: "  fairlead consul intentions --consul-address 127.0.0.1:8500 > policies.yaml\n" +
			"  fairlead consul intentions --consul-address 127.0.0.1:8500 --consul-token-file token --output-dir /etc/fairlead/mesh",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fl := cmd.Flags()
	f.catalog.consulFlags.add(fl)
	f.catalog.addNames(fl)
	fl.StringVar(&f.trustDomain, "trust-domain", "cluster.local", "trust domain of the mesh, as MeshConfig has it")
	fl.StringVar(&f.defaultPolicy, "default-policy", "", "what Consul does with requests that no intention is about: allow or deny, as its default_intention_policy, or without one the default policy of its ACLs; empty means deny, and a line if Consul may allow them")
	fl.StringVar(&f.outputDir, "output-dir", "", "directory for the file "+intentionsFile+", such as one of --config-dir; empty means standard output")
	_ = cmd.RegisterFlagCompletionFunc("default-policy", cobra.FixedCompletions([]string{"allow", "deny"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (f *intentionFlags) run(cmd *cobra.Command) error {
	if f.defaultPolicy != "" && f.defaultPolicy != "allow" && f.defaultPolicy != "deny" {
		return fmt.Errorf("--default-policy %q: choose allow or deny", f.defaultPolicy)
	}
	log := slog.New(slog.DiscardHandler) // what goes wrong is the command's error
	if _, err := f.catalog.config(log); err != nil {
		return err
	}
	c, err := f.catalog.read(cmd, log)
	if err != nil {
		return err
	}
	if err := c.Check(); err != nil {
		return err
	}
	mapper, err := c.Mapper()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), maxConsulRead)
	defer cancel()
	state, err := intentions.Read(ctx, c.Client, intentions.ReadOptions{Datacenters: c.Datacenters, Default: api.IntentionAction(f.defaultPolicy)})
	if err != nil {
		return fmt.Errorf("reading the intentions at %s: %w", c.Client.Address, err)
	}
	policies, notes := intentions.Convert(state, intentions.Options{TrustDomain: f.trustDomain, Mapper: mapper})
	if len(policies) == 0 {
		return fmt.Errorf("Consul at %s has no service of the mesh: see whether --consul-address and the datacenter are the right ones", c.Client.Address)
	}
	text, lost, err := encodePolicies(policies)
	if err != nil {
		return err
	}
	for _, n := range notes {
		lost = append(lost, "no counterpart: "+n.String())
	}
	if err := f.write(cmd, text); err != nil {
		return err
	}
	for _, line := range lost {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), safetext.Sanitize(line, 2048))
	}
	if len(lost) > 0 {
		return errInvalid
	}
	return nil
}

func (f *intentionFlags) write(cmd *cobra.Command, text []byte) error {
	if f.outputDir == "" {
		_, err := cmd.OutOrStdout().Write(text)
		return err
	}
	if len(text) > manifest.MaxFileSize {
		return fmt.Errorf("the policies have %d bytes, and a file may have %d: write them to standard output and divide them", len(text), manifest.MaxFileSize)
	}
	path := filepath.Join(f.outputDir, intentionsFile)
	if err := durable.WriteFile(durable.OS{}, path, text, 0o644); err != nil {
		return fmt.Errorf("writing %q: %w", path, rootCause(err))
	}
	return nil
}

// encodePolicies makes YAML documents, and reads each as a server would. What Envoy cannot be
// given denies there, and is returned; anything else would be a mistake of ours.
func encodePolicies(policies []intentions.Policy) (text []byte, lost []string, err error) {
	out := []byte("# Written by fairlead consul intentions, which replaces this file.\n")
	for _, p := range policies {
		one, err := encodePolicy(p)
		if err != nil {
			return nil, nil, fmt.Errorf("encoding the policy %s/%s: %w", p.Namespace, p.Name, err)
		}
		file, faults := manifest.Decode(manifest.Options{Source: source}, intentionsFile, one)
		if len(faults) > 0 || len(file.Objects) != 1 || !file.Objects[0].InForce() {
			return nil, nil, fmt.Errorf("the policy %s/%s would not be valid, and nothing is written: %v", p.Namespace, p.Name, findingsOf(faults))
		}
		for _, x := range untranslatable(file.Objects, manifest.Warning) {
			lost = append(lost, fmt.Sprintf("no counterpart: %s/%s: %s: %s", x.Namespace, x.Name, x.Field, x.Message))
		}
		out = append(append(out, "---\n"...), one...)
	}
	return out, lost, nil
}

func encodePolicy(p intentions.Policy) ([]byte, error) {
	text, err := protojson.Marshal(p.Spec)
	if err != nil {
		return nil, err
	}
	var spec any
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	err = enc.Encode(map[string]any{
		"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
		"metadata": map[string]any{"name": p.Name, "namespace": p.Namespace}, "spec": spec,
	})
	return out.Bytes(), errors.Join(err, enc.Close())
}
