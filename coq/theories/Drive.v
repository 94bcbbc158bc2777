(** * A driver that computes

    A function that takes the steps of [Worklist.v]: it visits the first pending node, and puts back
    what is above the nodes that a replacement touched. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine Enumeration
  Dag Rewriting InPlace RuleSet Locality Worklist.

Section Drive.
Context {Δ : Domain}.
Variable dag_meaning : dag -> interpretation nat.
Notation nodes := (nodes_of dag_meaning).

Variable rules : list pattern.
Variable act : body.
Hypothesis act_below : uses_below act.
Variable output : nat.

Notation live := (live output).
Notation choice := (choice act).
Notation drives := (drives dag_meaning rules act output).
Notation drives_to := (drives_to dag_meaning rules act output).

Definition members (g : dag) (test : nat -> bool) : list nat := filter test (seq 0 (length g)).

(** The nodes below the output, and the nodes above some. *)
Definition with_children (g : dag) (ks : list nat) : list nat :=
  nodup Nat.eq_dec (ks ++ flat_map (fun k => snd (dag_dest g k)) ks).

Definition live_nodes (g : dag) : list nat := Nat.iter (length g) (with_children g) [output].

Definition uses (g : dag) (ks : list nat) (k : nat) : bool :=
  existsb (fun c => mem c ks) (snd (dag_dest g k)).

Definition above (g : dag) (ts : list nat) : list nat :=
  let ks := Nat.iter (length g) (fun ks => members g (fun k => mem k ks || uses g ks k)) ts in
  if subset ts ks && subset (members g (uses g ks)) ks then ks else members g (fun _ => true).

Lemma members_spec g test k : In k (members g test) <-> k < length g /\ test k = true.
Proof. unfold members. rewrite filter_In, in_seq. split; intros [L E]; split; auto; lia. Qed.

Lemma child_exists g k c : child g k c -> k < length g.
Proof.
  unfold child, dag_dest. intros I. apply nth_error_Some. destruct (nth_error g k); [discriminate |].
  destruct I.
Qed.

Lemma live_nodes_live g k : In k (live_nodes g) -> live g k.
Proof.
  unfold live_nodes. revert k. induction (length g) as [| n IH]; simpl; intros k I.
  - destruct I as [<- | []]. constructor.
  - apply nodup_In, in_app_iff in I as [I | I]; auto. apply in_flat_map in I as (a & Ia & I).
    apply (below_trans g output a k (IH a Ia)), (B_child g a k k I), B_here.
Qed.

Lemma closed_live g ks k :
  In output ks -> subset (flat_map (fun k => snd (dag_dest g k)) ks) ks = true -> live g k -> In k ks.
Proof.
  intros O C L. apply subset_spec in C. revert O. unfold live in L. induction L; intros O; auto.
  apply IHL, C, in_flat_map. eauto.
Qed.

Lemma above_spec g ts k t : In t ts -> t < length g -> below g k t -> In k (above g ts).
Proof.
  intros I L B. unfold above. destruct (_ && _) eqn:C.
  - apply andb_prop in C as [C1 C2]. apply subset_spec in C1, C2. apply C1 in I.
    clear C1 L. induction B as [| k c t K _ IH]; auto. apply C2, members_spec.
    split; [eapply child_exists; eauto |]. apply existsb_exists. exists c.
    split; [exact K |]. apply mem_spec. auto.
  - apply members_spec. split; auto. destruct B as [| k c t K B]; auto. eapply child_exists; eauto.
Qed.

Definition touched_nodes (g G : dag) (i : nat) : list nat :=
  members G (fun k => Nat.leb (length g) k || mem i (snd (dag_dest g k))).

(** One visit: the graph, and what is put back. *)
Definition visit (fuel : nat) (back : dag -> list nat -> list nat) (g : dag) (i : nat)
    : option (dag * list nat) :=
  let L := live_nodes g in
  if mem i L then
    match sequence (map (fun p => run (Σ := nodes g) fuel (init p i)) rules) with
    | Some os =>
        match choice g i os with
        | Some (r, σ) =>
            match act g i r (theta σ) with
            | Some (g', j) =>
                let G := redirect_users (instead [i] [j]) g g' in Some (G, i :: back G (touched_nodes g G i))
            | None => None
            end
        | None => Some (g, [])
        end
    | None => None
    end
  else if mem output L && subset (flat_map (fun k => snd (dag_dest g k)) L) L then Some (g, [])
  else None.

Fixpoint drive (fuel : nat) (back : dag -> list nat -> list nat) (g : dag) (pending : list nat)
    : option dag :=
  match fuel, pending with
  | _, [] => Some g
  | 0, _ => None
  | S n, i :: rest =>
      option_bind (visit fuel back g i) (fun '(G, more) => drive n back G (rest ++ more))
  end.

Lemma sequence_runs g i fuel : forall ps os,
  sequence (map (fun p => run (Σ := nodes g) fuel (init p i)) ps) = Some os ->
  Forall2 (fun p o => answers (Σ := nodes g) (init p i) o) ps os.
Proof.
  induction ps as [| p ps IH]; intros os E; simpl in E; [injection E as <-; constructor |].
  destruct (run fuel (init p i)) as [o |] eqn:R; [| discriminate].
  destruct (sequence _) as [os' |] eqn:E'; [| discriminate]. injection E as <-.
  constructor; auto. exact (run_sound (Σ := nodes g) fuel _ _ R).
Qed.

Lemma visit_drives fuel g i rest G more :
  local_body act -> visit fuel above g i = Some (G, more) ->
  drives (g, i :: rest) (G, rest ++ more).
Proof.
  intros Loc E. unfold visit in E. destruct (mem i (live_nodes g)) eqn:L.
  - destruct (sequence _) as [os |] eqn:R; [| discriminate]. apply sequence_runs in R.
    apply mem_spec, live_nodes_live in L.
    destruct (choice g i os) as [[r σ] |] eqn:C.
    + destruct (act g i r (theta σ)) as [[g' j] |] eqn:A; [| discriminate]. injection E as <- <-.
      eapply D_replace; eauto using in_eq.
      * intros k [<- | I]; apply in_app_iff; [right; now left | now left].
      * eapply local_put_back; eauto. intros k t Tt B. apply in_app_iff. right. right.
        assert (t < length (redirect_users (instead [i] [j]) g g')) as Lt.
        { destruct Tt as [Tt | Tt]; [apply Tt |]. eapply Nat.lt_le_trans; [eapply child_exists, Tt |].
          eapply longer; eauto. }
        eapply above_spec; eauto. apply members_spec. split; auto.
        apply orb_true_iff. destruct Tt as [[Tt _] | Tt]; [left; now apply Nat.leb_le |].
        right. apply mem_spec. exact Tt.
    + injection E as <- <-. eapply D_drop; eauto using in_eq. rewrite app_nil_r. apply incl_refl.
  - destruct (_ && _) eqn:C; [| discriminate]. injection E as <- <-. apply andb_prop in C as [O C].
    apply (D_dead _ _ _ _ g _ _ i); auto using in_eq; [| rewrite app_nil_r; apply incl_refl].
    intros Li. apply mem_spec in O. apply (closed_live g _ i O C), mem_spec in Li. congruence.
Qed.

Theorem drive_drives fuel : forall g pending G,
  local_body act -> drive fuel above g pending = Some G -> drives_to (g, pending) (G, []).
Proof.
  induction fuel as [| n IH]; intros g [| i rest] G Loc E; try discriminate;
    try (injection E as <-; constructor).
  cbn [drive] in E. destruct (visit (S n) above g i) as [[G1 more] |] eqn:V; [| discriminate].
  eapply D_step; [eapply visit_drives; eauto | apply IH; auto].
Qed.
End Drive.
