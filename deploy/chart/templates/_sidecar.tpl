{{/*
The Envoy of a pod, in mode sidecar. `baton envoy render` writes its configuration when the pod starts, from the mesh's
own list of members: every worker that may exist, up to the autoscaler's most. A name that does not exist yet resolves
to nothing, so its cluster is empty until the worker comes.
*/}}

{{/* baton.members $: one --peer for each process of the mesh */}}
{{- define "baton.members" -}}
- --peer=edge/edge={{ include "baton.component" (list . "edge") }}.{{ include "baton.zone" . }}:{{ .Values.ports.edge }}
- --peer=gateway/gateway={{ include "baton.registry" . }}
{{- range $component := include "baton.workers" . | fromYamlArray }}
{{- $most := int (include "baton.values" (list $ $component) | fromYaml).replicas }}
{{- if ne $.Values.autoscaling.engine "none" }}{{ $most = int (include "baton.scaling" (list $ $component) | fromYaml).max }}{{ end }}
{{- $name := include "baton.component" (list $ $component) }}
{{- range $i := until $most }}
- --peer={{ include "baton.tier" $component }}/{{ $name }}-{{ $i }}={{ $name }}-{{ $i }}.{{ $name }}.{{ include "baton.zone" $ }}:{{ $.Values.ports.worker }}
{{- end }}
{{- end }}
{{- end -}}

{{/* baton.envoyMounts $ */}}
{{- define "baton.envoyMounts" -}}
- {name: envoy, mountPath: /etc/envoy, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{ include "baton.certificateMount" . }}
{{- end -}}

{{- define "baton.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* baton.renderer (list $ "prefill"): writes Envoy's configuration into the volume `envoy`. It reads the settings of the
service beside it, so it gets the same environment. */}}
{{- define "baton.renderer" -}}
{{- $ := index . 0 -}}{{- $component := index . 1 -}}
- name: envoy-configuration
  image: {{ include "baton.image" $ }}
  imagePullPolicy: {{ $.Values.image.pullPolicy }}
  command:
    - sh
    - -euc
    - |
      baton envoy secrets /etc/envoy --certificate /tls/tls.crt --key /tls/tls.key --ca /tls/ca.crt
      baton envoy render --config /etc/baton/baton.toml --secrets /etc/envoy "$@" >/etc/envoy/envoy.yaml
    - render
  args:
    - --role={{ include "baton.tier" $component }}
    - --name=$(IDENTITY)
    - --trust-domain={{ $.Values.security.trustDomain }}
    - --admin=127.0.0.1:{{ $.Values.ports.sidecarAdmin }}
    - --probe=0.0.0.0:{{ $.Values.ports.sidecarProbe }}
    {{- if eq $component "edge" }}
    - --public-certificate=/public/tls.crt
    - --public-key=/public/tls.key
    {{- end }}
    {{- if has $component (list "edge" "gateway") }}
    {{- range $.Values.edge.routes }}
    - --route={{ . }}
    {{- end }}
    {{- end }}
    {{- include "baton.members" $ | nindent 4 }}
  env: {{- include "baton.componentEnvironment" . | nindent 4 }}
  securityContext: {{- include "baton.confined" $ | nindent 4 }}
  resources: {{- toYaml $.Values.sidecar.resources | nindent 4 }}
  volumeMounts:
    - {name: settings, mountPath: /etc/baton, readOnly: true}
    - {name: envoy, mountPath: /etc/envoy}
    - {name: tmp, mountPath: /tmp}
    {{- include "baton.certificateMount" $ | nindent 4 }}
{{- end -}}

{{/* baton.envoy (list $ "prefill"): Envoy itself, the fields behind its name */}}
{{- define "baton.envoy" -}}
{{- $ := index . 0 -}}{{- $component := index . 1 -}}
image: {{ $.Values.sidecar.image }}
imagePullPolicy: {{ $.Values.sidecar.pullPolicy }}
args: [--config-path, /etc/envoy/envoy.yaml, --drain-time-s, "15", --log-level, warn]
env:
  {{- include "baton.identityVariable" $component | nindent 2 }}
ports:
  {{- if eq $component "edge" }}
  - {name: https, containerPort: {{ $.Values.ports.edge }}}
  {{- else }}
  - {name: grpc, containerPort: {{ ternary $.Values.ports.grpc $.Values.ports.worker (eq $component "gateway") }}}
  {{- end }}
  - {name: probe, containerPort: {{ $.Values.ports.sidecarProbe }}}
securityContext: {{- include "baton.confined" $ | nindent 2 }}
resources: {{- toYaml $.Values.sidecar.resources | nindent 2 }}
volumeMounts: {{- include "baton.envoyMounts" $ | nindent 2 }}
{{- end -}}

{{/* baton.sidecar (list $ "prefill"): the containers that start before the service and end after it */}}
{{- define "baton.sidecar" -}}
{{- $ := index . 0 -}}{{- $component := index . 1 -}}
{{- $pool := and (eq $component "gateway") $.Values.inferencePool.enabled (ne $.Values.inferencePool.appProtocol "http") -}}
{{- if or $pool (eq $.Values.security.mode "sidecar") -}}
initContainers:
  {{- if eq $.Values.security.mode "sidecar" }}
  {{- include "baton.renderer" . | nindent 2 }}
  - name: envoy
    restartPolicy: Always # a sidecar: Kubernetes ends it after the service
    {{- include "baton.envoy" . | nindent 4 }}
    startupProbe:
      tcpSocket: {port: probe}
      periodSeconds: 1
      failureThreshold: 60
  {{- end }}
  {{- if $pool }}
  - name: pool # takes HTTP/2 without TLS, which the front door does not speak, and passes it on as HTTP/1.1
    restartPolicy: Always
    image: {{ $.Values.sidecar.image }}
    imagePullPolicy: {{ $.Values.sidecar.pullPolicy }}
    args: [--config-path, /etc/baton/pool.yaml, --base-id, "1", --drain-time-s, "15", --log-level, warn]
    ports:
      - {name: pool, containerPort: {{ $.Values.ports.pool }}}
    securityContext: {{- include "baton.confined" $ | nindent 6 }}
    resources: {{- toYaml $.Values.sidecar.resources | nindent 6 }}
    volumeMounts:
      - {name: settings, mountPath: /etc/baton, readOnly: true}
      - {name: tmp, mountPath: /tmp}
  {{- end }}
{{- end }}
{{- end -}}

{{/* baton.pool $: the configuration of that Envoy */}}
{{- define "baton.pool" -}}
static_resources:
  listeners:
    - name: pool
      address: {socket_address: {address: 0.0.0.0, port_value: {{ .Values.ports.pool }}}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: pool
                codec_type: AUTO # HTTP/2 from the inference gateway, HTTP/1.1 from the picker that reads /metrics
                stream_idle_timeout: 0s
                route_config:
                  virtual_hosts:
                    - name: gateway
                      domains: ["*"]
                      routes: [{match: {prefix: /}, route: {cluster: gateway, timeout: 0s}}]
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
    - name: gateway
      type: STATIC
      connect_timeout: 1s
      load_assignment:
        cluster_name: gateway
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: {{ .Values.ports.http }}}}}
{{- end -}}
