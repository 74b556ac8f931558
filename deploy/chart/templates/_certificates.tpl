{{/*
Certificates of a pod: tls.crt, tls.key and ca.crt in /tls, with the DNS name `security.tlsName` and the SPIFFE identity
spiffe://<trust domain>/<component>/<name>. Gateways share one identity; each worker has its own.
*/}}

{{/* baton.identity (list $ "prefill"): the last part of the identity, the name of the process */}}
{{- define "baton.identity" -}}
{{- ternary "gateway" "${POD_NAME}" (eq (index . 1) "gateway") -}}
{{- end -}}

{{- define "baton.certificateVolume" -}}
{{- $ := index . 0 -}}{{- $component := index . 1 -}}{{- $security := $.Values.security -}}
- name: tls
  {{- if eq $security.certificates "csi" }}
  csi: # cert-manager's driver makes key and certificate on the node and renews both
    driver: csi.cert-manager.io
    readOnly: true
    volumeAttributes:
      csi.cert-manager.io/issuer-name: {{ $security.issuer.name | quote }}
      csi.cert-manager.io/issuer-kind: {{ $security.issuer.kind }}
      csi.cert-manager.io/issuer-group: {{ $security.issuer.group }}
      csi.cert-manager.io/dns-names: {{ $security.tlsName }}
      csi.cert-manager.io/uri-sans: spiffe://{{ $security.trustDomain }}/{{ include "baton.tier" $component }}/{{ include "baton.identity" . }}
      csi.cert-manager.io/key-usages: digital signature,server auth,client auth
      csi.cert-manager.io/key-algorithm: ECDSA
      csi.cert-manager.io/key-size: "256"
      csi.cert-manager.io/duration: {{ $security.duration }}
      csi.cert-manager.io/fs-group: {{ $.Values.user | quote }}
  {{- else }}
  secret: # one Secret a component: ca.crt, and NAME.crt and NAME.key of each process
    secretName: {{ include "baton.component" . }}-tls
    defaultMode: 0440
  {{- end }}
{{- end -}}

{{/* With Secrets a container sees the files of its own process only. Such mounts do not follow a changed Secret. */}}
{{- define "baton.certificateMount" -}}
{{- if eq .Values.security.certificates "csi" -}}
- {name: tls, mountPath: /tls, readOnly: true}
{{- else -}}
- {name: tls, mountPath: /tls/ca.crt, subPath: ca.crt, readOnly: true}
- {name: tls, mountPath: /tls/tls.crt, subPathExpr: $(IDENTITY).crt, readOnly: true}
- {name: tls, mountPath: /tls/tls.key, subPathExpr: $(IDENTITY).key, readOnly: true}
{{- end -}}
{{- end -}}
